
/*
 * ngx_http_idem_name.c - the name of a request's record: its key, and the scope
 * of its caller.
 */


#include "ngx_http_idem.h"
#include <sodium.h>


/*
 * The value, or nothing if a variable in it is empty: "$a:$b" without $a and $b
 * is a colon, and all callers or requests that lack them would count as one.
 */

static ngx_int_t
ngx_http_idem_whole_value(ngx_http_request_t *r, ngx_http_complex_value_t *cv,
    ngx_str_t *value)
{
    ngx_uint_t                 *index;
    ngx_http_variable_value_t  *part;

    for (index = cv->flushes; index && *index != (ngx_uint_t) -1; index++) {
        part = ngx_http_get_flushed_variable(r, *index);

        /* without memory it is not known whether the request has one */

        if (part == NULL) {
            return NGX_ERROR;
        }

        if (part->not_found || part->len == 0) {
            value->len = 0;
            return NGX_OK;
        }
    }

    if (ngx_http_complex_value(r, cv, value) != NGX_OK) {
        return NGX_ERROR;
    }

    /* it has evaluated some variables again, perhaps without memory */

    for (index = cv->flushes; index && *index != (ngx_uint_t) -1; index++) {
        part = ngx_http_get_indexed_variable(r, *index);

        if (part == NULL || part->not_found || part->len == 0) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_read_source(ngx_http_request_t *r, ngx_http_idem_source_t *source,
    ngx_str_t *body, ngx_str_t *value, const char **flaw)
{
    ngx_uint_t  count;

    switch (source->from) {

    case NGX_HTTP_IDEM_FROM_HEADER:
        if (ngx_http_idem_find_header(r, &source->name, value, &count)
            != NGX_OK)
        {
            return NGX_DECLINED;
        }

        if (count > 1) {
            *flaw = "The key was sent more than once: send it once.";
            return NGX_ABORT;
        }

        return NGX_OK;

    case NGX_HTTP_IDEM_FROM_VARIABLE:
        if (ngx_http_idem_whole_value(r, &source->value, value) != NGX_OK) {
            return NGX_ERROR;
        }

        return value->len ? NGX_OK : NGX_DECLINED;

    case NGX_HTTP_IDEM_FROM_CONST:
        *value = source->name;
        return NGX_OK;

    default:
        if (body == NULL) {
            return NGX_DECLINED;
        }

        return ngx_http_idem_body_field(r, source, body, value, flaw);
    }
}


/* find the key, or what is wrong with it; NGX_DECLINED if there is none */

static ngx_int_t
ngx_http_idem_find_key(ngx_http_idem_ctx_t *ctx, ngx_array_t *sources,
    ngx_str_t *body, const char **flaw)
{
    size_t                   len;
    u_char                  *out;
    ngx_int_t                rc;
    ngx_str_t                value;
    ngx_uint_t               i;
    struct idem_bytes        bytes;
    ngx_http_idem_source_t  *source;

    if (sources == NULL) {
        return NGX_DECLINED;
    }

    source = sources->elts;

    for (i = 0; i < sources->nelts; i++) {
        if (body && source[i].from == NGX_HTTP_IDEM_FROM_CONTENT) {

            /* the id is made of the content when the digest key is known */

            ctx->by_content = 1;
            return NGX_OK;
        }

        rc = ngx_http_idem_read_source(ctx->request, &source[i], body, &value,
                                       flaw);

        if (rc == NGX_DECLINED) {
            continue;
        }

        if (rc != NGX_OK) {
            return rc;
        }

        out = ngx_pnalloc(ctx->request->pool, IDEM_ID_MAX);
        if (out == NULL) {
            return NGX_ERROR;
        }

        bytes.data = value.data;
        bytes.len = value.len;

        *flaw = gateway_key_parse(bytes, ctx->conf->key_quoted
                                         && source[i].from
                                            == NGX_HTTP_IDEM_FROM_HEADER
                                         && sources == ctx->conf->keys,
                                  source[i].from != NGX_HTTP_IDEM_FROM_HEADER,
                                  out, &len);
        if (*flaw) {
            return NGX_ABORT;
        }

        ctx->id.data = out;
        ctx->id.len = len;
        return NGX_OK;
    }

    return NGX_DECLINED;
}


/* a token or a key; without a body only if none is needed */

ngx_int_t
ngx_http_idem_key(ngx_http_idem_ctx_t *ctx, ngx_str_t *body,
    const char **flaw)
{
    ngx_int_t  rc;

    rc = ngx_http_idem_find_key(ctx, ctx->conf->tokens, body, flaw);

    if (rc == NGX_OK) {
        ctx->token = 1;
    }

    if (rc != NGX_DECLINED) {
        return rc;
    }

    return ngx_http_idem_find_key(ctx, ctx->conf->keys, body, flaw);
}


/* credentials are never stored nor logged, only a keyed digest of them */

static void
ngx_http_idem_hash_part(crypto_generichash_state *hash, u_char *data,
    size_t len)
{
    uint32_t  n;

    n = (uint32_t) len;
    crypto_generichash_update(hash, (u_char *) &n, sizeof(n));
    crypto_generichash_update(hash, data, len);
}


static void
ngx_http_idem_hash_headers(ngx_http_request_t *r, ngx_str_t *name,
    crypto_generichash_state *hash)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    i = 0;
    part = &r->headers_in.headers.part;

    while ((h = ngx_http_idem_next_header(&part, &i, name)) != NULL) {
        ngx_http_idem_hash_part(hash, h->value.data, h->value.len);
    }
}


/*
 * Virtual hosts are different services, so their keys are separate.  The name
 * in the configuration counts.  With the client's Host, a retry under another
 * name of the same service would count as another caller's request and run
 * again.
 */

static ngx_str_t
ngx_http_idem_site(ngx_http_request_t *r)
{
    ngx_str_t                  none = ngx_null_string;
    ngx_http_core_srv_conf_t  *cscf;

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);

    if (cscf->server_name.len > 180
        || (cscf->server_name.len == 1 && cscf->server_name.data[0] == '_'))
    {
        return none;
    }

    return cscf->server_name;
}


static ngx_int_t
ngx_http_idem_digest_scope(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, ngx_str_t *scope)
{
    u_char                    digest[20], *p;
    ngx_str_t                *name, value, site;
    ngx_uint_t                i, count;
    ngx_http_idem_engine_t   *e = ngx_http_idem_engine();
    crypto_generichash_state  hash;

    name = conf->credentials->elts;

    for (i = 0; i < conf->credentials->nelts; i++) {
        if (ngx_http_idem_find_header(r, &name[i], &value, &count) == NGX_OK
            && (value.len || count > 1))
        {
            break;
        }
    }

    if (i == conf->credentials->nelts) {
        return NGX_DECLINED;
    }

    crypto_generichash_init(&hash, e->digest_key, NGX_HTTP_IDEM_DIGEST_LEN,
                            sizeof(digest));

    site = ngx_http_idem_site(r);

    ngx_http_idem_hash_part(&hash, site.data, site.len);
    ngx_http_idem_hash_part(&hash, name[i].data, name[i].len);
    ngx_http_idem_hash_headers(r, &name[i], &hash);
    crypto_generichash_final(&hash, digest, sizeof(digest));

    scope->len = sizeof("caller-") - 1 + 2 * sizeof(digest);
    scope->data = ngx_pnalloc(r->pool, scope->len);
    if (scope->data == NULL) {
        scope->len = 0;              /* the log may read it */
        return NGX_ERROR;
    }

    p = ngx_cpymem(scope->data, "caller-", sizeof("caller-") - 1);
    (void) ngx_hex_dump(p, digest, sizeof(digest));

    return NGX_OK;
}


/* bytes that cannot be a scope, or a name that is reserved */

static ngx_uint_t
ngx_http_idem_bad_scope(ngx_str_t *value)
{
    ngx_uint_t  i;

    for (i = 0; i < value->len; i++) {
        if (value->data[i] < 0x20 || value->data[i] == 0x7f) {
            return 1;
        }
    }

    if (value->data[0] == ' ' || value->data[value->len - 1] == ' ') {
        return 1;
    }

    return (value->len >= 5 && ngx_strncmp(value->data, "idem.", 5) == 0)
           || (value->len >= 47 && ngx_strncmp(value->data, "caller-", 7) == 0);
}


/*
 * NAME, or NAME@SITE on a site with a name.  On a site without a name, a NAME
 * with an "@" in it gets one more at its end, because otherwise it could equal
 * a scope of another site.
 */

static ngx_int_t
ngx_http_idem_named_scope(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, ngx_str_t *body, ngx_str_t *scope)
{
    u_char      *p;
    ngx_int_t    rc;
    ngx_str_t    value, site;
    const char  *flaw;

    rc = ngx_http_idem_read_source(r, conf->scope, body, &value, &flaw);

    if (rc != NGX_OK) {
        return rc;
    }

    if (value.len == 0) {
        return NGX_DECLINED;
    }

    if (ngx_http_idem_bad_scope(&value)) {
        return NGX_ABORT;
    }

    site = ngx_http_idem_site(r);

    if (site.len == 0
        && ngx_strlchr(value.data, value.data + value.len, '@') == NULL)
    {
        *scope = value;
        return value.len > IDEM_SCOPE_MAX ? NGX_ABORT : NGX_OK;
    }

    if (value.len + 1 + site.len > IDEM_SCOPE_MAX) {
        return NGX_ABORT;
    }

    scope->data = ngx_pnalloc(r->pool, value.len + 1 + site.len);
    if (scope->data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_cpymem(scope->data, value.data, value.len);
    *p++ = '@';
    p = ngx_cpymem(p, site.data, site.len);
    scope->len = p - scope->data;

    return NGX_OK;
}


/*
 * NGX_DECLINED: the caller is unknown; NGX_ABORT: the caller's name cannot be a
 * scope.
 *
 * Callers without a credential share a scope unless "idem_anonymous off" is
 * set.  If "idem_scope" names callers, those without a name share a scope only
 * if "idem_anonymous on" is set, so that nobody gets into it by leaving a
 * header out.
 */

ngx_int_t
ngx_http_idem_scope(ngx_http_request_t *r, ngx_http_idem_loc_conf_t *conf,
    ngx_str_t *body, ngx_str_t *scope)
{
    u_char     *p;
    ngx_int_t   rc;
    ngx_str_t   site;

    if (conf->scope) {
        rc = ngx_http_idem_named_scope(r, conf, body, scope);

        if (rc != NGX_DECLINED || conf->anonymous != 1
            || (conf->scope_needs_body && body == NULL))
        {
            return rc;
        }

    } else {
        rc = ngx_http_idem_digest_scope(r, conf, scope);

        if (rc != NGX_DECLINED || conf->anonymous == 0) {
            return rc;
        }
    }

    site = ngx_http_idem_site(r);

    if (site.len == 0) {
        ngx_str_set(scope, "anonymous");
        return NGX_OK;
    }

    scope->len = sizeof("anonymous@") - 1 + site.len;
    scope->data = ngx_pnalloc(r->pool, scope->len);
    if (scope->data == NULL) {
        scope->len = 0;
        return NGX_ERROR;
    }

    p = ngx_cpymem(scope->data, "anonymous@", sizeof("anonymous@") - 1);
    ngx_memcpy(p, site.data, site.len);

    return NGX_OK;
}
