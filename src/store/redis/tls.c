/*
 * tls.c - rediss://: the bytes of a link, encrypted by OpenSSL.
 *
 *   ca=FILE    whom to trust, instead of this machine's authorities
 *   cert=FILE, key=FILE    who we are, where the server wants to know
 *
 * The server's certificate must be signed by them, for the host that the link
 * connects to; there is no switch for less. OpenSSL moves its bytes through
 * a BIO of our own, for its sockets raise SIGPIPE.
 */
#include "redis.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct redis_tls {
    SSL_CTX *context;
    BIO_METHOD *method;
};

/* ---- the BIO ---------------------------------------------------------- */

static int
bio_result(BIO *bio, ssize_t n, int again)
{
    BIO_clear_retry_flags(bio);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_flags(bio, again | BIO_FLAGS_SHOULD_RETRY);
    return (int)n;
}

static int
bio_write(BIO *bio, const char *data, int len)
{
    const int *fd = BIO_get_data(bio);

    return bio_result(bio, send(*fd, data, (size_t)len, MSG_NOSIGNAL),
                      BIO_FLAGS_WRITE);
}

static int
bio_read(BIO *bio, char *room, int len)
{
    const int *fd = BIO_get_data(bio);

    return bio_result(bio, recv(*fd, room, (size_t)len, 0), BIO_FLAGS_READ);
}

static long
bio_control(BIO *bio, int command, long number, void *arg)
{
    (void)bio;
    (void)number;
    (void)arg;
    return command == BIO_CTRL_FLUSH; /* nothing is kept */
}

static BIO_METHOD *
make_method(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "idem");

    if (method && BIO_meth_set_write(method, bio_write) &&
        BIO_meth_set_read(method, bio_read) &&
        BIO_meth_set_ctrl(method, bio_control))
        return method;
    BIO_meth_free(method);
    return NULL;
}

/* ---- whom to trust, who we are ----------------------------------------- */

/* What OpenSSL says is wrong, or `otherwise`. */
static const char *
reason(const char *otherwise)
{
    unsigned long code = ERR_peek_error();
    const char *text = ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code))
                                              : ERR_reason_error_string(code);

    ERR_clear_error();
    return text ? text : otherwise;
}

static enum idem_status
read_files(SSL_CTX *context, const struct idem__url *url,
           struct idem_error *err)
{
    const char *ca = idem__url_option(url, "ca");
    const char *cert = idem__url_option(url, "cert");
    const char *key = idem__url_option(url, "key");

    ERR_clear_error();
    if (ca ? !SSL_CTX_load_verify_file(context, ca)
           : !SSL_CTX_set_default_verify_paths(context))
        return idem__fail(err, IDEM_ERR_INVALID, "rediss: ca=%s: %s",
                          ca ? ca : "", reason("cannot be read"));
    if (!cert && !key)
        return IDEM_OK;
    if (!cert || !SSL_CTX_use_certificate_chain_file(context, cert))
        return idem__fail(err, IDEM_ERR_INVALID, "rediss: cert=%s: %s",
                          cert ? cert : "", reason("is needed with key"));
    if (!key || !SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) ||
        !SSL_CTX_check_private_key(context))
        return idem__fail(err, IDEM_ERR_INVALID, "rediss: key=%s: %s",
                          key ? key : "", reason("is needed with cert"));
    return IDEM_OK;
}

enum idem_status
idem__redis_tls_open(struct redis_settings *settings, struct idem_error *err)
{
    struct redis_tls *tls = calloc(1, sizeof(*tls));

    settings->tls = tls;
    if (tls) {
        tls->method = make_method();
        tls->context = SSL_CTX_new(TLS_client_method());
    }
    if (!tls || !tls->method || !tls->context)
        return idem__fail(err, IDEM_ERR_MEMORY, "rediss: out of memory");
    SSL_CTX_set_min_proto_version(tls->context, TLS1_2_VERSION);
    SSL_CTX_set_options(tls->context, SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_mode(tls->context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                       SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(tls->context, SSL_VERIFY_PEER, NULL);
    return read_files(tls->context, &settings->url, err);
}

void
idem__redis_tls_close(struct redis_settings *settings)
{
    if (!settings->tls)
        return;
    SSL_CTX_free(settings->tls->context);
    BIO_meth_free(settings->tls->method);
    free(settings->tls);
    settings->tls = NULL;
}

/* ---- a link ------------------------------------------------------------ */

static bool
start(struct redis_link *link)
{
    const struct redis_tls *tls = link->settings->tls;
    struct in6_addr address;
    bool number = inet_pton(AF_INET, link->host, &address) == 1 ||
                  inet_pton(AF_INET6, link->host, &address) == 1;
    BIO *bio = BIO_new(tls->method);

    link->ssl = SSL_new(tls->context);
    if (!bio || !link->ssl) {
        BIO_free(bio);
        return false;
    }
    BIO_set_data(bio, &link->context->fd);
    BIO_set_init(bio, 1);
    SSL_set_bio(link->ssl, bio, bio);
    if (number)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(link->ssl),
                                             link->host) == 1;
    return SSL_set1_host(link->ssl, link->host) == 1 &&
           SSL_set_tlsext_host_name(link->ssl, link->host) == 1;
}

/* Wait until the socket can go on; false: the time is over. */
static bool
wait_for(const struct redis_link *link, int error, int64_t deadline_us)
{
    struct pollfd fd = {link->context->fd,
                        error == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN, 0};
    int64_t left_us = deadline_us - idem__mono_us();

    return left_us > 0 && poll(&fd, 1, (int)(left_us / 1000) + 1) != 0;
}

bool
idem__redis_tls_connect(struct redis_link *link, int64_t deadline_us, char *why,
                        size_t why_len)
{
    int error = SSL_ERROR_SSL;
    long verified;

    ERR_clear_error();
    if (start(link)) {
        do {
            int n = SSL_connect(link->ssl);

            if (n == 1)
                return true;
            error = SSL_get_error(link->ssl, n);
        } while (
            (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) &&
            wait_for(link, error, deadline_us));
    }
    verified = link->ssl ? SSL_get_verify_result(link->ssl) : X509_V_OK;
    if (verified != X509_V_OK)
        snprintf(why, why_len, "TLS: the server's certificate: %s",
                 X509_verify_cert_error_string(verified));
    else
        snprintf(why, why_len, "TLS: %s",
                 error == SSL_ERROR_SSL       ? reason("it failed")
                 : error == SSL_ERROR_SYSCALL ? "the connection broke"
                                              : "no answer in time");
    ERR_clear_error();
    return false;
}

void
idem__redis_tls_drop(struct redis_link *link)
{
    SSL_free(link->ssl);
    link->ssl = NULL;
}

const char *
idem__redis_tls_flaw(void)
{
    return reason("the connection broke");
}

/* As send and recv answer. */
static ssize_t
moved(struct redis_link *link, int n)
{
    int error = SSL_get_error(link->ssl, n);

    if (n > 0)
        return n;
    if (error == SSL_ERROR_ZERO_RETURN)
        return 0;
    errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE
                ? EAGAIN
                : ECONNRESET;
    return -1;
}

static int
at_most(size_t len)
{
    return len < INT32_MAX ? (int)len : INT32_MAX;
}

ssize_t
idem__redis_tls_send(struct redis_link *link, const void *data, size_t len)
{
    ERR_clear_error(); /* whatever else this thread did */
    return moved(link, SSL_write(link->ssl, data, at_most(len)));
}

ssize_t
idem__redis_tls_recv(struct redis_link *link, void *room, size_t len)
{
    ERR_clear_error();
    return moved(link, SSL_read(link->ssl, room, at_most(len)));
}
