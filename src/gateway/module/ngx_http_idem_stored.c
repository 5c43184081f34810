
/*
 * ngx_http_idem_stored.c - stored responses on their way to callers.
 *
 * The engine replies to every waiting duplicate separately, one after the
 * other.  Their large responses are the same bytes, so the requests of a
 * worker share one copy, which lives until the last of these requests ends.
 */


#include "ngx_http_idem.h"


#define NGX_HTTP_IDEM_SHARED          4096


struct ngx_http_idem_stored_s {
    ngx_http_idem_engine_t      *engine;
    ngx_uint_t                   refs;
    size_t                       len;
    u_char                       data[1];
};


static void
ngx_http_idem_stored_cleanup(void *data)
{
    ngx_http_idem_stored_t  *s = data;

    if (--s->refs) {
        return;
    }

    if (s->engine->stored == s) {
        s->engine->stored = NULL;
    }

    ngx_free(s);
}


/* a copy of the engine's bytes; it lives as long as the request */

ngx_int_t
ngx_http_idem_stored(ngx_http_request_t *r, ngx_http_idem_engine_t *e,
    struct idem_bytes *bytes, ngx_str_t *stored)
{
    ngx_pool_cleanup_t      *cln;
    ngx_http_idem_stored_t  *s;

    stored->len = bytes->len;

    if (bytes->len < NGX_HTTP_IDEM_SHARED) {
        stored->data = ngx_pnalloc(r->pool, bytes->len ? bytes->len : 1);
        if (stored->data == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(stored->data, bytes->data, bytes->len);
        return NGX_OK;
    }

    cln = ngx_pool_cleanup_add(r->pool, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    s = e->stored;

    if (s == NULL || s->len != bytes->len
        || ngx_memcmp(s->data, bytes->data, bytes->len) != 0)
    {
        s = ngx_alloc(sizeof(ngx_http_idem_stored_t) + bytes->len, e->log);
        if (s == NULL) {
            return NGX_ERROR;
        }

        s->engine = e;
        s->refs = 0;
        s->len = bytes->len;
        ngx_memcpy(s->data, bytes->data, bytes->len);

        e->stored = s;
    }

    s->refs++;

    cln->handler = ngx_http_idem_stored_cleanup;
    cln->data = s;

    stored->data = s->data;

    return NGX_OK;
}
