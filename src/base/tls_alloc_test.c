/*
 * tls_alloc_test.c - connections of TLS that fail: the other side is silent or
 * gone, its certificate does not say one name, or memory is short, in OpenSSL
 * too.
 */
#include "../../tests/support/alloc_countdown.h"

#include "tls.h"
#include "wait.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define PATIENCE_US 20000000 /* a busy machine is slow */
#define HOST "here.example"

/* ---- memory ----------------------------------------------------------------
 */

/* The linker makes these fail, as all others of this program. */
static void *
take(size_t len, const char *file, int line)
{
    (void)file;
    (void)line;
    return malloc(len);
}

static void *
resize(void *old, size_t len, const char *file, int line)
{
    (void)file;
    (void)line;
    return realloc(old, len);
}

static void
give_back(void *old, const char *file, int line)
{
    (void)file;
    (void)line;
    free(old);
}

/* ---- certificates ----------------------------------------------------------
 */

static char folder[] = "/tmp/idem-tls-XXXXXX";

/* A name may hold a NUL. */
struct name {
    const char *text;
    int len;
};

static void
write_pem(const char *name, X509 *certificate, EVP_PKEY *key)
{
    char path[100];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "w");
    assert_non_null(file);
    if (certificate)
        assert_int_equal(PEM_write_X509(file, certificate), 1);
    else
        assert_int_equal(
            PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(file);
    assert_int_equal(chmod(path, 0600), 0);
}

/* NAME.pem and NAME.key; the certificate is its own authority, for HOST and
 * 127.0.0.1. */
static void
make_certificate(const char *file, const struct name *names, size_t count)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    X509_NAME *subject = X509_get_subject_name(x);
    X509_EXTENSION *hosts = X509V3_EXT_conf_nid(
        NULL, NULL, NID_subject_alt_name, "DNS:" HOST ",IP:127.0.0.1");
    char name[64];

    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -86400);
    X509_gmtime_adj(X509_getm_notAfter(x), 86400);
    X509_set_pubkey(x, key);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(
            X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_UTF8,
                                       (const unsigned char *)names[i].text,
                                       names[i].len, -1, 0),
            1);
    X509_set_issuer_name(x, subject);
    X509_add_ext(x, hosts, -1);
    assert_true(X509_sign(x, key, EVP_sha256()) > 0);
    snprintf(name, sizeof(name), "%s.pem", file);
    write_pem(name, x, NULL);
    snprintf(name, sizeof(name), "%s.key", file);
    write_pem(name, NULL, key);
    X509_EXTENSION_free(hosts);
    X509_free(x);
    EVP_PKEY_free(key);
}

static int
setup(void **state)
{
    static const struct name server[] = {{HOST, sizeof(HOST) - 1}};

    (void)state;
    assert_non_null(mkdtemp(folder));
    make_certificate("server", server, 1);
    return 0;
}

static int
teardown(void **state)
{
    char command[100];

    (void)state;
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

/* ---- the two sides ---------------------------------------------------------
 */

struct sides {
    struct idem__tls *client, *server;
    struct idem__tls_end *client_end, *server_end;
    int fds[2]; /* the client's and the server's */
};

static enum idem_status
open_client(const char *own, struct idem__tls **tls, struct idem_error *err)
{
    static const char *const known[] = {"ca", "cert", "key", NULL};
    struct idem__url url;
    enum idem_status status;
    char text[400];
    size_t len = (size_t)snprintf(text, sizeof(text),
                                  "idems://h?ca=%s/server.pem", folder);

    if (own)
        snprintf(text + len, sizeof(text) - len,
                 "&cert=%s/%s.pem&key=%s/%s.key", folder, own, folder, own);
    status = idem__url_parse(text, 1, known, &url, err);
    if (status == IDEM_OK)
        status = idem__tls_open_client("tls: ", &url, tls, err);
    idem__url_clear(&url);
    return status;
}

static enum idem_status
open_server(const char *clients, struct idem__tls **tls, struct idem_error *err)
{
    char ca[100], cert[100], key[100];
    struct idem__tls_files files = {clients ? ca : NULL, cert, key};

    snprintf(ca, sizeof(ca), "%s/%s.pem", folder, clients ? clients : "");
    snprintf(cert, sizeof(cert), "%s/server.pem", folder);
    snprintf(key, sizeof(key), "%s/server.key", folder);
    return idem__tls_open_server("tls: ", &files, tls, err);
}

/* `own`: the client's certificate, which the server trusts; NULL: none. */
static void
sides_open(struct sides *sides, const char *own, const char *host)
{
    struct idem_error err;

    memset(sides, 0, sizeof(*sides));
    if (open_client(own, &sides->client, &err) != IDEM_OK ||
        open_server(own, &sides->server, &err) != IDEM_OK)
        fail_msg("%s", err.text);
    assert_int_equal(socketpair(AF_UNIX,
                                SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                                sides->fds),
                     0);
    sides->client_end = idem__tls_start(sides->client, sides->fds[0], host);
    sides->server_end = idem__tls_start(sides->server, sides->fds[1], NULL);
    assert_non_null(sides->client_end);
    assert_non_null(sides->server_end);
}

static void
sides_close(struct sides *sides)
{
    idem__tls_end(sides->client_end);
    idem__tls_end(sides->server_end);
    idem__tls_close(sides->client);
    idem__tls_close(sides->server);
    close(sides->fds[0]);
    close(sides->fds[1]);
}

/* Both sides in turn; 0 if both are done. */
static int
shake_both(struct sides *sides)
{
    int client = 1, server = 1;

    for (int i = 0; i < 20 && (client > 0 || server > 0); i++) {
        client = client > 0 ? idem__tls_shake(sides->client_end) : client;
        server = server > 0 ? idem__tls_shake(sides->server_end) : server;
        if (client < 0 || server < 0)
            return -1;
    }
    return client == 0 && server == 0 ? 0 : 1;
}

/* ---- tests -----------------------------------------------------------------
 */

static void *
be_server(void *arg)
{
    struct sides *sides = arg;
    char why[200] = "";

    return idem__tls_finish(sides->server_end, idem__mono_us() + PATIENCE_US,
                            why, sizeof(why))
               ? sides
               : NULL;
}

static void
a_handshake_waits_for_the_other_side(void **state)
{
    struct sides sides;
    pthread_t thread;
    void *done = NULL;
    char why[200] = "", got[8] = "";

    (void)state;
    sides_open(&sides, NULL, HOST);
    assert_int_equal(pthread_create(&thread, NULL, be_server, &sides), 0);
    if (!idem__tls_finish(sides.client_end, idem__mono_us() + PATIENCE_US, why,
                          sizeof(why)))
        fail_msg("%s", why);
    pthread_join(thread, &done);
    assert_ptr_equal(done, &sides);
    assert_int_equal(idem__tls_recv(sides.server_end, got, sizeof(got)), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(idem__tls_send(sides.client_end, "hello", 5), 5);
    assert_int_equal(idem__tls_recv(sides.server_end, got, sizeof(got)), 5);
    assert_string_equal(got, "hello");
    idem__tls_goodbye(sides.client_end);
    assert_int_equal(idem__tls_recv(sides.server_end, got, sizeof(got)), 0);
    sides_close(&sides);
}

static void
a_handshake_with_nobody_ends_in_time(void **state)
{
    struct sides sides;
    char why[200] = "";

    (void)state;
    sides_open(&sides, NULL, HOST);
    assert_false(idem__tls_finish(sides.client_end, idem__mono_us() + 20000,
                                  why, sizeof(why)));
    assert_string_equal(why, "TLS: no reply in time");
    why[0] = 0;
    assert_false(idem__tls_finish(sides.client_end, idem__mono_us() - 1, why,
                                  sizeof(why)));
    assert_string_equal(why, "TLS: no reply in time");
    /* It is gone after the client's first message. */
    shutdown(sides.fds[1], SHUT_WR);
    assert_false(idem__tls_finish(
        sides.client_end, idem__mono_us() + PATIENCE_US, why, sizeof(why)));
    assert_string_equal(why, "TLS: the connection broke");
    sides_close(&sides);
    assert_false(idem__tls_finish(NULL, idem__mono_us(), why, sizeof(why)));
    assert_string_equal(why, "TLS: the connection broke"); /* no memory */
}

static void
a_handshake_waits_until_the_socket_takes_bytes(void **state)
{
    static const char filler[4096];
    struct sides sides;
    char dropped[4096];

    (void)state;
    sides_open(&sides, NULL, HOST);
    while (send(sides.fds[0], filler, sizeof(filler), MSG_NOSIGNAL) > 0)
        ;
    assert_int_equal(idem__tls_shake(sides.client_end), POLLOUT);
    while (recv(sides.fds[1], dropped, sizeof(dropped), 0) > 0)
        ;
    assert_int_equal(shake_both(&sides), 0);
    sides_close(&sides);
}

static void
another_host_is_refused(void **state)
{
    static const struct {
        const char *host, *why;
    } hosts[] = {
        {"elsewhere.example", "hostname mismatch"},
        {"127.0.0.2", "IP address mismatch"},
        {"::1", "IP address mismatch"},
        {"127.0.0.1", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        struct sides sides;
        char why[200] = "";

        sides_open(&sides, NULL, hosts[i].host);
        assert_int_equal(shake_both(&sides), hosts[i].why ? -1 : 0);
        idem__tls_why(sides.client_end, why, sizeof(why));
        if (hosts[i].why && (!strstr(why, "the server's certificate: ") ||
                             !strstr(why, hosts[i].why)))
            fail_msg("%s: %s", hosts[i].host, why);
        sides_close(&sides);
    }
}

/* A certificate stands for a credential, so what it says must be one name. */
static void
a_client_has_one_name_or_none(void **state)
{
    static const struct {
        struct name names[2];
        size_t count;
        bool good;
    } cases[] = {
        {{{"shop", 4}}, 1, true},
        {{{"shop", 4}, {"bank", 4}}, 2, false},
        {{{NULL, 0}}, 0, false},
        {{{"sh\0p", 4}}, 1, false},
        {{{"longer-than-room", 16}}, 1, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sides sides;
        char file[20], name[16] = "";

        snprintf(file, sizeof(file), "client-%zu", i);
        make_certificate(file, cases[i].names, cases[i].count);
        sides_open(&sides, file, HOST);
        assert_int_equal(shake_both(&sides), 0);
        if (idem__tls_peer(sides.server_end, name, sizeof(name)) !=
            cases[i].good)
            fail_msg("case %zu", i);
        assert_string_equal(name, cases[i].good ? "shop" : "");
        sides_close(&sides);
    }
}

static void
a_client_without_a_certificate_has_no_name(void **state)
{
    struct sides sides;
    char name[64];

    (void)state;
    sides_open(&sides, NULL, HOST);
    assert_int_equal(shake_both(&sides), 0);
    assert_false(idem__tls_peer(sides.server_end, name, sizeof(name)));
    assert_true(idem__tls_peer(sides.client_end, name, sizeof(name)));
    assert_string_equal(name, HOST);
    sides_close(&sides);
}

/* ---- no memory -------------------------------------------------------------
 */

/* One allocation of opening both sides fails: each of the first ones, and ever
 * fewer of the thousands of OpenSSL after them. */
static void
without_memory_nothing_is_opened(void **state)
{
    long n = 1, refused = 0;

    (void)state;
    for (failed = true; failed; n += 1 + n / 32) {
        struct idem__tls *client = NULL, *server = NULL;
        struct idem_error err = {IDEM_OK, ""};
        enum idem_status status;

        failed = false;
        countdown = n;
        status = open_client(NULL, &client, &err);
        if (status == IDEM_OK)
            status = open_server(NULL, &server, &err);
        countdown = 0;
        if (status != IDEM_OK) {
            refused++;
            assert_true(failed);
            assert_true(status == IDEM_ERR_MEMORY ||
                        status == IDEM_ERR_INVALID);
            assert_true(err.text[0] != 0);
            assert_true(!client || !server);
        }
        idem__tls_close(client);
        idem__tls_close(server);
    }
    assert_true(n > 1000 && refused > 20);
}

static void
without_memory_no_connection_is_started(void **state)
{
    static const char *const hosts[] = {HOST, "127.0.0.1", NULL};
    struct sides sides;

    (void)state;
    sides_open(&sides, NULL, HOST);
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        long n = 0, refused = 0;

        do {
            struct idem__tls_end *end;

            failed = false;
            countdown = ++n;
            end = idem__tls_start(hosts[i] ? sides.client : sides.server,
                                  sides.fds[0], hosts[i]);
            countdown = 0;
            assert_true(end || failed);
            refused += !end;
            idem__tls_end(end);
        } while (failed);
        assert_true(refused > 3);
    }
    assert_int_equal(shake_both(&sides), 0); /* nothing was sent meanwhile */
    sides_close(&sides);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handshake_waits_for_the_other_side),
        cmocka_unit_test(a_handshake_with_nobody_ends_in_time),
        cmocka_unit_test(a_handshake_waits_until_the_socket_takes_bytes),
        cmocka_unit_test(another_host_is_refused),
        cmocka_unit_test(a_client_has_one_name_or_none),
        cmocka_unit_test(a_client_without_a_certificate_has_no_name),
        cmocka_unit_test(without_memory_nothing_is_opened),
        cmocka_unit_test(without_memory_no_connection_is_started),
    };

    /* Before OpenSSL allocates anything. */
    if (CRYPTO_set_mem_functions(take, resize, give_back) != 1)
        return 1;
    return cmocka_run_group_tests(tests, setup, teardown);
}
