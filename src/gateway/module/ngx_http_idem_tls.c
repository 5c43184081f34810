
/*
 * ngx_http_idem_tls.c - TLS on the connection to the engine.
 *
 * OpenSSL checks the engine's certificate and its name during the handshake; a
 * connection that does not pass that check carries no command.
 */


#include "ngx_http_idem.h"


#define NGX_HTTP_IDEM_HANDSHAKE  2000


#if (NGX_SSL)

/* the files of idem_engine are read when nginx reads its configuration */

static ngx_int_t
ngx_http_idem_tls_context(ngx_conf_t *cf, ngx_http_idem_engine_t *e)
{
    ngx_pool_cleanup_t  *cln;

    e->ssl = ngx_pcalloc(cf->pool, sizeof(ngx_ssl_t));
    if (e->ssl == NULL) {
        return NGX_ERROR;
    }

    e->ssl->log = cf->log;

    if (ngx_ssl_create(e->ssl, NGX_SSL_TLSv1_2|NGX_SSL_TLSv1_3, NULL)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    cln = ngx_pool_cleanup_add(cf->pool, 0);
    if (cln == NULL) {
        ngx_ssl_cleanup_ctx(e->ssl);
        return NGX_ERROR;
    }

    cln->handler = ngx_ssl_cleanup_ctx;
    cln->data = e->ssl;

    if (e->cert.len
        && ngx_ssl_certificate(cf, e->ssl, &e->cert, &e->key, NULL) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (e->ca.len) {
        return ngx_ssl_trusted_certificate(cf, e->ssl, &e->ca, 9);
    }

    return SSL_CTX_set_default_verify_paths(e->ssl->ctx) ? NGX_OK : NGX_ERROR;
}


/* nginx's own callback lets every certificate pass, to be judged later */

static int
ngx_http_idem_tls_verify(int ok, X509_STORE_CTX *store)
{
    return ok;
}


/* the certificate must be for this name or address */

static ngx_int_t
ngx_http_idem_tls_expect(ngx_http_idem_engine_t *e, ngx_ssl_conn_t *conn)
{
    char              *host;
    X509_VERIFY_PARAM *param;

    host = (char *) e->host.data;
    param = SSL_get0_param(conn);

    SSL_set_verify(conn, SSL_VERIFY_PEER, ngx_http_idem_tls_verify);

    if (X509_VERIFY_PARAM_set1_ip_asc(param, host)) {
        return NGX_OK;
    }

    return X509_VERIFY_PARAM_set1_host(param, host, 0)
           && SSL_set_tlsext_host_name(conn, host) ? NGX_OK : NGX_ERROR;
}


static void
ngx_http_idem_tls_done(ngx_connection_t *c)
{
    long                     rc;
    const char              *why;
    ngx_http_idem_engine_t  *e = c->data;

    rc = SSL_get_verify_result(c->ssl->connection);

    if (c->ssl->handshaked && rc == X509_V_OK) {
        ngx_http_idem_connected(e);
        return;
    }

    why = rc == X509_V_OK ? "no TLS connection: the handshake failed"
                          : X509_verify_cert_error_string(rc);

    ngx_http_idem_disconnect(e, why);
}


void
ngx_http_idem_tls_start(ngx_http_idem_engine_t *e)
{
    ngx_int_t          rc;
    ngx_connection_t  *c;

    c = e->connection;

    /* of nginx's own memory for it; the connection has none */

    c->pool = ngx_create_pool(1024, e->log);

    if (c->pool == NULL
        || ngx_ssl_create_connection(e->ssl, c, NGX_SSL_CLIENT) != NGX_OK
        || ngx_http_idem_tls_expect(e, c->ssl->connection) != NGX_OK)
    {
        ngx_http_idem_disconnect(e, "out of memory");
        return;
    }

    rc = ngx_ssl_handshake(c);

    if (rc == NGX_AGAIN) {
        c->ssl->handler = ngx_http_idem_tls_done;
        ngx_add_timer(c->write, NGX_HTTP_IDEM_HANDSHAKE);
        return;
    }

    ngx_http_idem_tls_done(c);
}


#else

static ngx_int_t
ngx_http_idem_tls_context(ngx_conf_t *cf, ngx_http_idem_engine_t *e)
{
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "this nginx was built without TLS");

    return NGX_ERROR;
}


void
ngx_http_idem_tls_start(ngx_http_idem_engine_t *e)
{
    ngx_http_idem_disconnect(e, "this nginx was built without TLS");
}

#endif


/* tls=, ca=, cert=, key= and name= of idem_engine */

ngx_int_t
ngx_http_idem_tls_create(ngx_conf_t *cf, ngx_http_idem_engine_t *e)
{
    if (e->tls) {
        if ((e->cert.len == 0) == (e->key.len == 0)) {
            return ngx_http_idem_tls_context(cf, e);
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "cert= and key= belong together");
        return NGX_ERROR;
    }

    if (e->ca.len || e->cert.len || e->key.len || e->host.len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "ca=, cert=, key= and name= need tls=on");
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* hang up, with TLS or without */

void
ngx_http_idem_link_close(ngx_connection_t *c)
{
    ngx_pool_t  *pool;

#if (NGX_SSL)
    if (c->ssl) {
        c->ssl->no_wait_shutdown = 1;
        c->ssl->no_send_shutdown = 1;
        (void) ngx_ssl_shutdown(c);
    }
#endif

    pool = c->pool;

    ngx_close_connection(c);

    if (pool) {
        ngx_destroy_pool(pool);
    }
}
