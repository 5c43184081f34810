/*
 * http_tls.c - HTTPS, with libmicrohttpd's TLS (GnuTLS): the server's
 * certificate, which SIGHUP reads again, and certificates of clients.
 */
#include "http_inner.h"

#include <gnutls/abstract.h>
#include <gnutls/x509.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define CHAIN_MAX 16
#define WHAT "http: tls-"

/* Static, because libmicrohttpd passes no argument of ours to its callback. A
 * process has only one server. */
static struct {
    pthread_mutex_t lock;
    gnutls_datum_t cert, key; /* PEM */
    gnutls_datum_t trust;     /* does not change while the daemons run */
} files = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void
forget(gnutls_datum_t *text)
{
    if (text->data)
        sodium_munlock(text->data, text->size); /* this overwrites it, too */
    gnutls_free(text->data);
    *text = (gnutls_datum_t){NULL, 0};
}

static enum idem_status
read_file(const char *option, const char *file, gnutls_datum_t *text,
          struct idem_error *err)
{
    int flaw = gnutls_load_file(file, text);

    /* Keep it out of swap if the limit allows; otherwise go on without that. */
    if (flaw == 0)
        (void)sodium_mlock(text->data, text->size);
    return flaw == 0 ? IDEM_OK
                     : idem__fail(err, IDEM_ERR_INVALID, WHAT "%s=%s: %s",
                                  option, file, gnutls_strerror(flaw));
}

/* Parse both from their text; returns 0, or GnuTLS's error. */
static int
import(const gnutls_datum_t *cert, const gnutls_datum_t *key,
       gnutls_pcert_st *chain, unsigned *count, gnutls_privkey_t *private)
{
    int flaw = gnutls_pcert_list_import_x509_raw(chain, count, cert,
                                                 GNUTLS_X509_FMT_PEM, 0);

    if (flaw < 0)
        return flaw;
    flaw = gnutls_privkey_init(private);
    if (flaw == 0) {
        flaw = gnutls_privkey_import_x509_raw(*private, key,
                                              GNUTLS_X509_FMT_PEM, NULL, 0);
        if (flaw < 0)
            gnutls_privkey_deinit(*private);
    }
    for (unsigned i = 0; flaw < 0 && i < *count; i++)
        gnutls_pcert_deinit(&chain[i]);
    return flaw < 0 ? flaw : 0;
}

static enum idem_status
check_pair(const gnutls_datum_t *cert, const gnutls_datum_t *key,
           struct idem_error *err)
{
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned count = CHAIN_MAX;
    gnutls_privkey_t private;
    int flaw = import(cert, key, chain, &count, &private);

    if (flaw < 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "http: the certificate or its key: %s",
                          gnutls_strerror(flaw));
    gnutls_privkey_deinit(private);
    for (unsigned i = 0; i < count; i++)
        gnutls_pcert_deinit(&chain[i]);
    return IDEM_OK;
}

enum idem_status
http_tls_read(const struct server_config *config, struct idem_error *err)
{
    gnutls_datum_t cert = {NULL, 0}, key = {NULL, 0};
    enum idem_status status = read_file("cert", config->tls_cert, &cert, err);

    if (status == IDEM_OK)
        status = read_file("key", config->tls_key, &key, err);
    if (status == IDEM_OK)
        status = check_pair(&cert, &key, err);
    if (status == IDEM_OK && config->tls_client_ca && !files.trust.data)
        status =
            read_file("client-ca", config->tls_client_ca, &files.trust, err);
    if (status == IDEM_OK) {
        gnutls_datum_t old[2];

        pthread_mutex_lock(&files.lock);
        old[0] = files.cert;
        old[1] = files.key;
        files.cert = cert;
        files.key = key;
        pthread_mutex_unlock(&files.lock);
        cert = old[0];
        key = old[1];
    }
    forget(&cert);
    forget(&key);
    return status;
}

void
http_tls_forget(void)
{
    forget(&files.cert);
    forget(&files.key);
    forget(&files.trust);
}

const char *
http_tls_trust(void)
{
    return (const char *)files.trust.data; /* GnuTLS ends it with a NUL */
}

/* Each connection gets a copy, which GnuTLS frees. */
int
http_tls_show(gnutls_session_t session, const struct gnutls_cert_retr_st *info,
              gnutls_pcert_st **certs, unsigned *count,
              gnutls_ocsp_data_st **ocsp, unsigned *ocsp_count,
              gnutls_privkey_t *private, unsigned *flags)
{
    gnutls_pcert_st *chain = gnutls_calloc(CHAIN_MAX, sizeof(*chain));
    int flaw;

    (void)session;
    (void)info;
    if (!chain)
        return -1;
    *count = CHAIN_MAX;
    pthread_mutex_lock(&files.lock);
    flaw = import(&files.cert, &files.key, chain, count, private);
    pthread_mutex_unlock(&files.lock);
    if (flaw < 0) {
        gnutls_free(chain);
        return -1;
    }
    *certs = chain;
    *ocsp = NULL;
    *ocsp_count = 0;
    *flags = GNUTLS_CERT_RETR_DEINIT_ALL;
    return 0;
}

/* True if there is exactly one common name, and it fits. */
static bool
read_name(const gnutls_datum_t *der, char *name, size_t name_len)
{
    static const char oid[] = GNUTLS_OID_X520_COMMON_NAME;
    gnutls_x509_crt_t certificate;
    size_t len = name_len, none = 0;
    bool ok;

    if (gnutls_x509_crt_init(&certificate) < 0)
        return false;
    ok = gnutls_x509_crt_import(certificate, der, GNUTLS_X509_FMT_DER) == 0 &&
         gnutls_x509_crt_get_dn_by_oid(certificate, oid, 0, 0, name, &len) ==
             0 &&
         strlen(name) == len &&
         gnutls_x509_crt_get_dn_by_oid(certificate, oid, 1, 0, NULL, &none) ==
             GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE;
    gnutls_x509_crt_deinit(certificate);
    return ok;
}

bool
http_tls_peer(struct MHD_Connection *connection, char *name, size_t name_len)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    gnutls_typed_vdata_st purpose = {GNUTLS_DT_KEY_PURPOSE_OID,
                                     (unsigned char *)GNUTLS_KP_TLS_WWW_CLIENT,
                                     0};
    unsigned status = 0, count = 0;
    const gnutls_datum_t *list;

    if (!info || !info->tls_session ||
        gnutls_certificate_verify_peers(info->tls_session, &purpose, 1,
                                        &status) != 0 ||
        status != 0)
        return false;
    list = gnutls_certificate_get_peers(info->tls_session, &count);
    if (!list || count == 0)
        return false;
    if (!read_name(&list[0], name, name_len))
        name[0] = '\0';
    return true;
}
