
/*
 * ngx_http_idem_body.c - the request's body, in memory or in a file: its size
 * and limit, a field of it, its fingerprint.
 */


#include "ngx_http_idem.h"
#include <sodium.h>

#include "fields.h"
#include "json.h"


static ngx_http_request_body_filter_pt  ngx_http_next_request_body_filter;


/* a body without a length is refused at the limit, before it fills the disk */

static ngx_int_t
ngx_http_idem_request_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_chain_t          *cl;
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idem_module);

    if (ctx && ctx->state == NGX_HTTP_IDEM_READING) {

        for (cl = in; cl; cl = cl->next) {
            ctx->received += ngx_buf_size(cl->buf);
        }

        if (ctx->received > (off_t) ctx->conf->max_body) {
            ctx->state = NGX_HTTP_IDEM_PASSING;
            ctx->problem = &ngx_http_idem_body_too_large;
            return NGX_HTTP_REQUEST_ENTITY_TOO_LARGE;
        }
    }

    return ngx_http_next_request_body_filter(r, in);
}


void
ngx_http_idem_body_init(void)
{
    ngx_http_next_request_body_filter = ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter = ngx_http_idem_request_body_filter;
}


off_t
ngx_http_idem_body_size(ngx_http_request_t *r)
{
    off_t         size;
    ngx_chain_t  *cl;

    size = 0;

    if (r->request_body) {
        for (cl = r->request_body->bufs; cl; cl = cl->next) {
            size += ngx_buf_size(cl->buf);
        }
    }

    return size;
}


/* read all of it into memory; the limit was checked before */

ngx_int_t
ngx_http_idem_body_text(ngx_http_request_t *r, ngx_str_t *body)
{
    u_char       *p;
    ssize_t       n;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    ngx_str_null(body);

    if (r->request_body == NULL || r->request_body->bufs == NULL) {
        return NGX_OK;
    }

    cl = r->request_body->bufs;

    if (cl->next == NULL && ngx_buf_in_memory(cl->buf)) {
        body->data = cl->buf->pos;
        body->len = cl->buf->last - cl->buf->pos;
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, ngx_http_idem_body_size(r) + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    body->data = p;

    for ( /* void */ ; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            p = ngx_cpymem(p, b->pos, b->last - b->pos);
            continue;
        }

        if (!b->in_file) {
            continue;
        }

        n = ngx_read_file(b->file, p, b->file_last - b->file_pos, b->file_pos);

        if (n != (ssize_t) (b->file_last - b->file_pos)) {
            return NGX_ERROR;
        }

        p += n;
    }

    body->len = p - body->data;

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_body_field(ngx_http_request_t *r, ngx_http_idem_source_t *source,
    ngx_str_t *body, ngx_str_t *value, const char **flaw)
{
    u_char             *out;
    size_t              len;
    enum gateway_field  got;
    struct idem_bytes   in, name;

    out = ngx_pnalloc(r->pool, GATEWAY_FIELD_MAX);
    if (out == NULL) {
        return NGX_ERROR;
    }

    in.data = body->data;
    in.len = body->len;
    name.data = source->name.data;
    name.len = source->name.len;
    len = 0;

    switch (source->from) {

    case NGX_HTTP_IDEM_FROM_JSON:
        got = gateway_json_field(in, name, out, &len);
        break;

    case NGX_HTTP_IDEM_FROM_FORM:
        got = gateway_form_field(in, name, out, &len);
        break;

    default: /* NGX_HTTP_IDEM_FROM_XML */
        got = gateway_xml_field(in, name, out, &len);
        break;
    }

    switch (got) {

    case GATEWAY_FIELD_FOUND:
        value->data = out;
        value->len = len;
        return NGX_OK;

    case GATEWAY_FIELD_BAD:
        *flaw = "The body's field cannot be a key: it is too long, is given "
                "twice, or is neither text nor a number; or the body is "
                "ambiguous, so that two programs could read it differently.";
        return NGX_ABORT;

    case GATEWAY_FIELD_MEMORY:
        return NGX_ERROR;

    default: /* GATEWAY_FIELD_NONE */
        return NGX_DECLINED;
    }
}


/* a digest in the making; short parts are collected, because each update of the
 * hash costs more than they do */

typedef struct {
    crypto_generichash_state     state;
    size_t                       len;
    u_char                       parts[512];
} ngx_http_idem_hash_t;


/* the start of a digest is always the same, so it is made once and copied; its
 * key changes when the engine gets another store */

static void
ngx_http_idem_hash_begin(ngx_http_idem_hash_t *hash)
{
    u_char                          *key;

    static u_char                    known[NGX_HTTP_IDEM_DIGEST_LEN];
    static ngx_uint_t                begun;
    static crypto_generichash_state  start;

    key = ngx_http_idem_engine()->digest_key;

    if (!begun || ngx_memcmp(known, key, sizeof(known)) != 0) {
        crypto_generichash_init(&start, key, NGX_HTTP_IDEM_DIGEST_LEN,
                                IDEM_FINGERPRINT_LEN);
        ngx_memcpy(known, key, sizeof(known));
        begun = 1;
    }

    hash->state = start;
    hash->len = 0;
}


static void
ngx_http_idem_hash_add(ngx_http_idem_hash_t *hash, const void *data,
    size_t len)
{
    if (len > sizeof(hash->parts) - hash->len) {
        crypto_generichash_update(&hash->state, hash->parts, hash->len);
        hash->len = 0;

        if (len > sizeof(hash->parts)) {
            crypto_generichash_update(&hash->state, data, len);
            return;
        }
    }

    if (len) {
        ngx_memcpy(hash->parts + hash->len, data, len);
        hash->len += len;
    }
}


/* each part is preceded by its length, so that no two requests hash alike */

static void
ngx_http_idem_hash(ngx_http_idem_hash_t *hash, const void *data, size_t len)
{
    uint64_t  n;

    n = len;
    ngx_http_idem_hash_add(hash, &n, sizeof(n));
    ngx_http_idem_hash_add(hash, data, len);
}


static ngx_int_t
ngx_http_idem_hash_body(ngx_http_request_t *r, ngx_http_idem_hash_t *hash)
{
    off_t         pos;
    u_char       *buf;
    ssize_t       n;
    uint64_t      size;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    buf = NULL;
    size = ngx_http_idem_body_size(r);
    ngx_http_idem_hash_add(hash, &size, sizeof(size));

    if (r->request_body == NULL) {
        return NGX_OK;
    }

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            ngx_http_idem_hash_add(hash, b->pos, b->last - b->pos);
            continue;
        }

        if (!b->in_file) {
            continue;
        }

        if (buf == NULL) {
            buf = ngx_palloc(r->pool, 65536);
            if (buf == NULL) {
                return NGX_ERROR;
            }
        }

        for (pos = b->file_pos; pos < b->file_last; pos += n) {
            n = ngx_read_file(b->file, buf,
                              ngx_min(b->file_last - pos, 65536), pos);

            if (n <= 0) {
                return NGX_ERROR;
            }

            ngx_http_idem_hash_add(hash, buf, n);
        }
    }

    return NGX_OK;
}


/* hash the configured members; a path without a value counts as empty */

static ngx_int_t
ngx_http_idem_hash_fields(ngx_array_t *fields, struct idem_bytes in,
    u_char *out, ngx_http_idem_hash_t *hash)
{
    size_t              len;
    ngx_str_t          *path;
    ngx_uint_t          i;
    enum gateway_field  got;
    struct idem_bytes   name;

    path = fields->elts;

    for (i = 0; i < fields->nelts; i++) {
        name.data = path[i].data;
        name.len = path[i].len;

        got = gateway_json_canonical(in, name, out, &len);

        if (got == GATEWAY_FIELD_MEMORY) {
            return NGX_ERROR;
        }

        ngx_http_idem_hash(hash, out, got == GATEWAY_FIELD_FOUND ? len : 0);
    }

    return NGX_OK;
}


/* canonical JSON, which ignores the order of members and the spaces between;
 * NGX_DECLINED if the body is not JSON and must be compared byte by byte */

static ngx_int_t
ngx_http_idem_hash_json(ngx_http_request_t *r, ngx_array_t *fields,
    ngx_http_idem_hash_t *hash)
{
    size_t              len;
    u_char             *out;
    ngx_int_t           rc;
    ngx_str_t           body;
    enum gateway_field  got;
    struct idem_bytes   in, all;

    rc = ngx_http_idem_body_text(r, &body);

    if (rc != NGX_OK) {
        return rc;
    }

    in.data = body.data;
    in.len = body.len;
    all.data = NULL;
    all.len = 0;

    out = ngx_alloc(gateway_json_canonical_max(in.len), ngx_cycle->log);
    if (out == NULL) {
        return NGX_ERROR;
    }

    if (fields) {
        ngx_http_idem_hash(hash, "fields", 6);
    }

    got = gateway_json_canonical(in, all, out, &len);

    if (got != GATEWAY_FIELD_FOUND) {
        rc = got == GATEWAY_FIELD_NONE ? NGX_DECLINED : NGX_ERROR;

    } else if (fields) {
        rc = ngx_http_idem_hash_fields(fields, in, out, hash);

    } else {
        ngx_http_idem_hash(hash, "json", 4);
        ngx_http_idem_hash(hash, out, len);
    }

    ngx_free(out);

    return rc;
}


ngx_int_t
ngx_http_idem_body_digest(ngx_http_idem_ctx_t *ctx, ngx_uint_t json,
    u_char *digest)
{
    ngx_int_t              rc;
    ngx_http_request_t    *r = ctx->request;
    ngx_http_idem_hash_t   hash;

    ngx_http_idem_hash_begin(&hash);

    ngx_http_idem_hash(&hash, r->method_name.data, r->method_name.len);
    ngx_http_idem_hash(&hash, r->headers_in.server.data,
                       r->headers_in.server.len);
    ngx_http_idem_hash(&hash, r->unparsed_uri.data, r->unparsed_uri.len);

    rc = json ? ngx_http_idem_hash_json(r, ctx->conf->fields, &hash)
              : NGX_DECLINED;

    if (rc == NGX_DECLINED) {
        rc = ngx_http_idem_hash_body(r, &hash);
    }

    crypto_generichash_update(&hash.state, hash.parts, hash.len);
    crypto_generichash_final(&hash.state, digest, IDEM_FINGERPRINT_LEN);

    return rc;
}
