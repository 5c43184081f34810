/*
 * tls.c - TLS connections with OpenSSL; see tls.h.
 *
 * OpenSSL reads and writes through a BIO of this file, because its own socket
 * BIO can raise SIGPIPE. OpenSSL does not read ahead of a TLS record. So poll()
 * on the descriptor is reliable if the caller always reads whole records.
 */
#include "tls.h"

#include "wait.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define CHAIN_MAX 32768 /* bytes of certificates that a client may send */

struct idem__tls {
    SSL_CTX *context;
    BIO_METHOD *method;
};

/* ---- the BIO ---------------------------------------------------------- */

static int
bio_fd(BIO *bio)
{
    return (int)(intptr_t)BIO_get_data(bio);
}

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
    return bio_result(bio, send(bio_fd(bio), data, (size_t)len, MSG_NOSIGNAL),
                      BIO_FLAGS_WRITE);
}

static int
bio_read(BIO *bio, char *room, int len)
{
    return bio_result(bio, recv(bio_fd(bio), room, (size_t)len, 0),
                      BIO_FLAGS_READ);
}

static long
bio_control(BIO *bio, int command, long number, void *arg)
{
    (void)bio;
    (void)number;
    (void)arg;
    return command == BIO_CTRL_FLUSH; /* the BIO has no buffer */
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

/* ---- the context: certificates and keys -------------------------------- */

/* OpenSSL's error text, or `otherwise`; replaced by a better text if OpenSSL's
 * own does not say what to do. */
static const char *
reason(const char *otherwise)
{
    unsigned long code = ERR_peek_error();
    const char *text = ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code))
                                              : ERR_reason_error_string(code);

    ERR_clear_error();
    if (ERR_GET_LIB(code) != ERR_LIB_SSL)
        return text ? text : otherwise;
    switch (ERR_GET_REASON(code)) {
    case SSL_R_WRONG_VERSION_NUMBER:
        return "wrong version number: is TLS spoken on that port?";
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        return "certificate required: give cert=FILE and key=FILE";
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
        return "the connection broke";
    default:
        return text ? text : otherwise;
    }
}

static bool
everybody_reads(const char *file)
{
    struct stat about;

    return stat(file, &about) == 0 && (about.st_mode & S_IRWXO);
}

static enum idem_status
read_files(SSL_CTX *context, bool server, const char *what,
           const struct idem__tls_files *files, struct idem_error *err)
{
    const char *ca = files->ca, *cert = files->cert, *key = files->key;

    ERR_clear_error();
    if (ca ? !SSL_CTX_load_verify_file(context, ca)
           : !server && !SSL_CTX_set_default_verify_paths(context))
        return idem__fail(err, IDEM_ERR_INVALID, "%s%sca=%s: %s", what,
                          server ? "client-" : "", ca ? ca : "",
                          reason("cannot be read"));
    if (!server && !cert && !key)
        return IDEM_OK;
    if (!cert || !SSL_CTX_use_certificate_chain_file(context, cert))
        return idem__fail(err, IDEM_ERR_INVALID, "%scert=%s: %s", what,
                          cert ? cert : "", reason("is needed with key"));
    if (!key || !SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) ||
        !SSL_CTX_check_private_key(context))
        return idem__fail(err, IDEM_ERR_INVALID, "%skey=%s: %s", what,
                          key ? key : "", reason("is needed with cert"));
    if (server && everybody_reads(key))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "%skey=%s: every user can read it; run: chmod o= %s",
                          what, key, key);
    return IDEM_OK;
}

/* No renegotiation and no resumption, so that every connection shows its
 * certificate; an idle connection keeps no buffers. */
static void
set_up(SSL_CTX *context, bool server, bool ask_clients)
{
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                  SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    if (!server) {
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
        return;
    }
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION |
                                     SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_max_cert_list(context, CHAIN_MAX);
    if (ask_clients)
        SSL_CTX_set_verify(
            context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
}

static enum idem_status
make_context(bool server, const char *what, const struct idem__tls_files *files,
             SSL_CTX **made, struct idem_error *err)
{
    SSL_CTX *context =
        SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    enum idem_status status;

    if (!context)
        return idem__fail(err, IDEM_ERR_MEMORY, "%sout of memory", what);
    set_up(context, server, files->ca != NULL);
    status = read_files(context, server, what, files, err);
    if (status == IDEM_OK)
        *made = context;
    else
        SSL_CTX_free(context);
    return status;
}

static enum idem_status
open_context(bool server, const char *what, const struct idem__tls_files *files,
             struct idem__tls **tls, struct idem_error *err)
{
    struct idem__tls *self = calloc(1, sizeof(*self));
    enum idem_status status;

    if (!self || !(self->method = make_method())) {
        free(self);
        return idem__fail(err, IDEM_ERR_MEMORY, "%sout of memory", what);
    }
    status = make_context(server, what, files, &self->context, err);
    if (status == IDEM_OK)
        *tls = self;
    else
        idem__tls_close(self);
    return status;
}

enum idem_status
idem__tls_open_client(const char *what, const struct idem__url *url,
                      struct idem__tls **tls, struct idem_error *err)
{
    const struct idem__tls_files files = {
        .ca = idem__url_option(url, "ca"),
        .cert = idem__url_option(url, "cert"),
        .key = idem__url_option(url, "key"),
    };

    return open_context(false, what, &files, tls, err);
}

enum idem_status
idem__tls_open_server(const char *what, const struct idem__tls_files *files,
                      struct idem__tls **tls, struct idem_error *err)
{
    return open_context(true, what, files, tls, err);
}

enum idem_status
idem__tls_reread(struct idem__tls *tls, const char *what,
                 const struct idem__tls_files *files, struct idem_error *err)
{
    SSL_CTX *fresh = NULL;
    enum idem_status status = make_context(true, what, files, &fresh, err);

    if (status != IDEM_OK)
        return status;
    SSL_CTX_free(tls->context); /* open connections hold a reference */
    tls->context = fresh;
    return IDEM_OK;
}

void
idem__tls_close(struct idem__tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    BIO_meth_free(tls->method);
    free(tls);
}

/* ---- a connection ------------------------------------------------------- */

static SSL *
ssl_of(struct idem__tls_end *end)
{
    return (SSL *)end;
}

/* Set the host name or address that the client expects. */
static bool
want_host(SSL *ssl, const char *host)
{
    struct in6_addr address;

    if (inet_pton(AF_INET, host, &address) == 1 ||
        inet_pton(AF_INET6, host, &address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    return SSL_set1_host(ssl, host) == 1 &&
           SSL_set_tlsext_host_name(ssl, host) == 1;
}

struct idem__tls_end *
idem__tls_start(const struct idem__tls *tls, int fd, const char *host)
{
    BIO *bio = BIO_new(tls->method);
    SSL *ssl = SSL_new(tls->context);

    if (!bio || !ssl || (host && !want_host(ssl, host))) {
        BIO_free(bio);
        SSL_free(ssl);
        return NULL;
    }
    BIO_set_data(bio, (void *)(intptr_t)fd);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    if (host)
        SSL_set_connect_state(ssl);
    else
        SSL_set_accept_state(ssl);
    return (struct idem__tls_end *)ssl;
}

void
idem__tls_goodbye(struct idem__tls_end *end)
{
    if (!SSL_in_init(ssl_of(end)))
        (void)SSL_shutdown(ssl_of(end));
    ERR_clear_error();
}

void
idem__tls_end(struct idem__tls_end *end)
{
    if (!end)
        return;
    idem__tls_goodbye(end);
    SSL_free(ssl_of(end));
}

int
idem__tls_shake(struct idem__tls_end *end)
{
    int n;

    ERR_clear_error();
    n = SSL_do_handshake(ssl_of(end));
    if (n == 1)
        return 0;
    switch (SSL_get_error(ssl_of(end), n)) {
    case SSL_ERROR_WANT_READ:
        return POLLIN;
    case SSL_ERROR_WANT_WRITE:
        return POLLOUT;
    default:
        return -1;
    }
}

void
idem__tls_why(struct idem__tls_end *end, char *why, size_t why_len)
{
    long verified = end ? SSL_get_verify_result(ssl_of(end)) : X509_V_OK;

    if (verified != X509_V_OK)
        snprintf(why, why_len, "TLS: the %s's certificate: %s",
                 SSL_is_server(ssl_of(end)) ? "client" : "server",
                 X509_verify_cert_error_string(verified));
    else
        snprintf(why, why_len, "TLS: %s", reason("the connection broke"));
    ERR_clear_error();
}

bool
idem__tls_finish(struct idem__tls_end *end, int64_t deadline_us, char *why,
                 size_t why_len)
{
    int wants = -1;

    while (end && (wants = idem__tls_shake(end)) > 0) {
        struct pollfd fd = {bio_fd(SSL_get_rbio(ssl_of(end))), (short)wants, 0};
        int64_t left_us = deadline_us - idem__mono_us();

        if (left_us <= 0 || poll(&fd, 1, (int)(left_us / 1000) + 1) == 0) {
            snprintf(why, why_len, "TLS: no reply in time");
            return false;
        }
    }
    if (wants < 0)
        idem__tls_why(end, why, why_len);
    return wants == 0;
}

const char *
idem__tls_flaw(void)
{
    return reason("the connection broke");
}

/* Returns the same values as send and recv. */
static ssize_t
moved(struct idem__tls_end *end, int n)
{
    int error;

    if (n > 0)
        return n;
    error = SSL_get_error(ssl_of(end), n);
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
idem__tls_send(struct idem__tls_end *end, const void *data, size_t len)
{
    ERR_clear_error(); /* errors of earlier calls on this thread */
    return moved(end, SSL_write(ssl_of(end), data, at_most(len)));
}

/* Reads whole records while there is room for one. */
ssize_t
idem__tls_recv(struct idem__tls_end *end, void *room, size_t len)
{
    size_t got = 0;
    ssize_t n;

    do {
        ERR_clear_error();
        n = moved(
            end, SSL_read(ssl_of(end), (char *)room + got, at_most(len - got)));
        if (n > 0)
            got += (size_t)n;
    } while (n > 0 && len - got >= IDEM__TLS_RECORD);
    return got > 0 ? (ssize_t)got : n;
}

bool
idem__tls_peer(struct idem__tls_end *end, char *name, size_t name_len)
{
    X509 *certificate = SSL_get0_peer_certificate(ssl_of(end));
    X509_NAME *subject =
        certificate ? X509_get_subject_name(certificate) : NULL;
    int at =
        subject ? X509_NAME_get_index_by_NID(subject, NID_commonName, -1) : -1;
    unsigned char *text = NULL;
    int len;
    bool ok;

    if (at < 0 || X509_NAME_get_index_by_NID(subject, NID_commonName, at) >= 0)
        return false;
    len = ASN1_STRING_to_UTF8(
        &text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
    ok = len > 0 && (size_t)len < name_len && !memchr(text, 0, (size_t)len);
    if (ok) {
        memcpy(name, text, (size_t)len);
        name[len] = 0;
    }
    OPENSSL_free(text);
    ERR_clear_error();
    return ok;
}
