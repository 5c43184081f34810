
/*
 * ngx_http_idem_variables.c - variables that describe a request, for logs, and
 * two for the headers of a request to the service.
 */


#include "ngx_http_idem.h"
#include <sodium.h>


static ngx_int_t ngx_http_idem_text_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_idem_fence_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_idem_key_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_idem_instance_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_idem_upgrade_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);


static ngx_str_t  ngx_http_idem_websocket = ngx_string("websocket");
static ngx_str_t  ngx_http_idem_upgrades = ngx_string("upgrade");

/* as an indexed variable it has one value for the whole request */

static ngx_int_t  ngx_http_idem_request_id;


static ngx_http_variable_t  ngx_http_idem_variables[] = {

    { ngx_string("idem_verdict"), NULL, ngx_http_idem_text_variable,
      offsetof(ngx_http_idem_ctx_t, verdict), NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idem_scope"), NULL, ngx_http_idem_text_variable,
      offsetof(ngx_http_idem_ctx_t, scope), NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idem_id"), NULL, ngx_http_idem_text_variable,
      offsetof(ngx_http_idem_ctx_t, id), NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idem_key"), NULL, ngx_http_idem_key_variable,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idem_instance"), NULL, ngx_http_idem_instance_variable,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idem_fence"), NULL, ngx_http_idem_fence_variable,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idem_upgrade"), NULL, ngx_http_idem_upgrade_variable,
      (uintptr_t) &ngx_http_idem_websocket, NGX_HTTP_VAR_CHANGEABLE, 0 },

    { ngx_string("idem_connection"), NULL, ngx_http_idem_upgrade_variable,
      (uintptr_t) &ngx_http_idem_upgrades, NGX_HTTP_VAR_CHANGEABLE, 0 },

      ngx_http_null_variable
};


ngx_int_t
ngx_http_idem_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    static ngx_str_t  request_id = ngx_string("request_id");

    for (v = ngx_http_idem_variables; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    ngx_http_idem_request_id = ngx_http_get_variable_index(cf, &request_id);

    return ngx_http_idem_request_id == NGX_ERROR ? NGX_ERROR : NGX_OK;
}


static void
ngx_http_idem_value(ngx_http_variable_value_t *v, ngx_str_t *s)
{
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = (s->len == 0);
    v->len = s->len;
    v->data = s->data;
}


static ngx_int_t
ngx_http_idem_text_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_idem_get_ctx(r->main);

    if (ctx == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    ngx_http_idem_value(v, (ngx_str_t *) ((char *) ctx + data));

    return NGX_OK;
}


/* each part is preceded by its length as two bytes, as the engine hashes it */

static void
ngx_http_idem_hash_name(crypto_hash_sha256_state *hash, ngx_str_t *s)
{
    u_char  len[2];

    len[0] = (u_char) (s->len >> 8);
    len[1] = (u_char) s->len;

    crypto_hash_sha256_update(hash, len, sizeof(len));
    crypto_hash_sha256_update(hash, s->data, s->len);
}


/*
 * "key=" of the engine's log: the first digits of the record's lookup key;
 * declined if the request has no record
 */

#define NGX_HTTP_IDEM_KEY_DIGITS  16

static ngx_int_t
ngx_http_idem_key_digits(ngx_http_idem_ctx_t *ctx, u_char *digits)
{
    u_char                     type, digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state   hash;

    if (ctx == NULL || ctx->scope.len == 0 || ctx->id.len == 0) {
        return NGX_DECLINED;
    }

    type = IDEM_TYPE_REQUEST;

    crypto_hash_sha256_init(&hash);
    crypto_hash_sha256_update(&hash, &type, 1);
    ngx_http_idem_hash_name(&hash, &ctx->scope);
    ngx_http_idem_hash_name(&hash, &ctx->id);
    crypto_hash_sha256_final(&hash, digest);

    (void) ngx_hex_dump(digits, digest, NGX_HTTP_IDEM_KEY_DIGITS / 2);

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_key_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t  s;

    s.len = NGX_HTTP_IDEM_KEY_DIGITS;
    s.data = ngx_pnalloc(r->pool, s.len);
    if (s.data == NULL) {
        return NGX_ERROR;
    }

    if (ngx_http_idem_key_digits(ngx_http_idem_get_ctx(r->main), s.data)
        != NGX_OK)
    {
        v->not_found = 1;
        return NGX_OK;
    }

    ngx_http_idem_value(v, &s);

    return NGX_OK;
}


/*
 * nginx's $request_id in the form of a UUID.  If there is a record, it has
 * version 8 and begins with the first 15 digits of the record's key, so that
 * the record can be found.
 */

ngx_int_t
ngx_http_idem_instance(ngx_http_request_t *r, ngx_str_t *instance)
{
    u_char                      id[32], digits[NGX_HTTP_IDEM_KEY_DIGITS];
    ngx_http_idem_ctx_t        *ctx;
    ngx_http_variable_value_t  *v;

    ctx = ngx_http_idem_get_ctx(r->main);

    if (ctx && ctx->instance.len) {
        *instance = ctx->instance;
        return NGX_OK;
    }

    v = ngx_http_get_indexed_variable(r->main, ngx_http_idem_request_id);

    instance->data = ngx_pnalloc(r->pool, sizeof("urn:uuid:") - 1 + 36);

    if (v == NULL || v->not_found || v->len != sizeof(id)
        || instance->data == NULL)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(id, v->data, sizeof(id));
    id[12] = '4';

    if (ngx_http_idem_key_digits(ctx, digits) == NGX_OK) {
        ngx_memcpy(id, digits, 12);
        id[12] = '8';
        ngx_memcpy(&id[13], &digits[12], 3);
    }

    id[16] = "89ab"[id[16] & 3];

    instance->len = ngx_sprintf(instance->data,
                                "urn:uuid:%*s-%*s-%*s-%*s-%*s",
                                (size_t) 8, id, (size_t) 4, &id[8],
                                (size_t) 4, &id[12], (size_t) 4, &id[16],
                                (size_t) 12, &id[20])
                    - instance->data;

    if (ctx) {
        ctx->instance = *instance;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_instance_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t  s;

    if (ngx_http_idem_instance(r, &s) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_idem_value(v, &s);

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_fence_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t             s;
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_idem_get_ctx(r->main);

    if (ctx == NULL || ctx->claim == NULL || ctx->claim->fence == 0) {
        v->not_found = 1;
        return NGX_OK;
    }

    s.data = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (s.data == NULL) {
        return NGX_ERROR;
    }

    s.len = ngx_sprintf(s.data, "%uL", ctx->claim->fence) - s.data;

    ngx_http_idem_value(v, &s);

    return NGX_OK;
}


/*
 * The headers Upgrade and Connection for the service: those of a WebSocket if
 * the client asks for one, otherwise none.  Another protocol could send
 * requests that are not protected.
 */

static ngx_int_t
ngx_http_idem_upgrade_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t        *value = (ngx_str_t *) data;
    ngx_table_elt_t  *h;

    h = r->headers_in.upgrade;

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->len = 0;
    v->data = value->data;

    if (h && h->value.len == ngx_http_idem_websocket.len
        && ngx_strncasecmp(h->value.data, ngx_http_idem_websocket.data,
                           h->value.len)
           == 0)
    {
        v->len = value->len;
    }

    return NGX_OK;
}
