
/*
 * ngx_http_idem_inject.c - put a token into the forms of a page.
 *
 * The service is asked for the plain page: not compressed, complete, and not
 * "not modified".  On its way to the client each form that is sent with POST
 * (form_tag.h) gets a hidden field with the page's token.
 */


#include "ngx_http_idem.h"


char *
ngx_http_idem_inject_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    u_char       c;
    ngx_str_t   *value;
    ngx_uint_t   i;

    if (ilcf->inject.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        value[1].len = 0;
    }

    for (i = 0; i < value[1].len; i++) {
        c = value[1].data[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
              || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.'))
        {
            return "has a name with other characters than letters, digits, "
                   "\"_\", \"-\" and \".\"";
        }
    }

    ilcf->inject = value[1];

    return NGX_CONF_OK;
}


ngx_int_t
ngx_http_idem_inject_source(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf)
{
    ngx_uint_t               i, n;
    ngx_array_t             *list;
    ngx_http_idem_source_t  *source, *copy;

    source = conf->tokens ? conf->tokens->elts : NULL;
    n = conf->tokens ? conf->tokens->nelts : 0;

    for (i = 0; i < n; i++) {
        if (source[i].from == NGX_HTTP_IDEM_FROM_FORM
            && source[i].name.len == conf->inject.len
            && ngx_strncmp(source[i].name.data, conf->inject.data,
                           conf->inject.len) == 0)
        {
            return NGX_OK;
        }
    }

    list = ngx_array_create(cf->pool, n + 1, sizeof(ngx_http_idem_source_t));
    if (list == NULL) {
        return NGX_ERROR;
    }

    copy = ngx_array_push_n(list, n + 1);
    if (copy == NULL) {
        return NGX_ERROR;
    }

    if (n) {
        ngx_memcpy(copy, source, n * sizeof(ngx_http_idem_source_t));
    }

    ngx_memzero(&copy[n], sizeof(ngx_http_idem_source_t));
    copy[n].from = NGX_HTTP_IDEM_FROM_FORM;
    copy[n].name = conf->inject;

    conf->tokens = list;

    return NGX_OK;
}


/* a browser asks for a page; images and similar requests need no token */

ngx_uint_t
ngx_http_idem_wants_page(ngx_http_request_t *r, ngx_http_idem_loc_conf_t *conf)
{
    ngx_str_t   accept;
    ngx_uint_t  count;

    static ngx_str_t  name = ngx_string("accept");

    if (!(r->method & NGX_HTTP_GET)) {
        return 0;
    }

    if (conf->page_token) {
        return 1;
    }

    return conf->inject.len && r->headers_in.upgrade == NULL
           && ngx_http_idem_find_header(r, &name, &accept, &count) == NGX_OK
           && ngx_strlcasestrn(accept.data, accept.data + accept.len,
                               (u_char *) "text/html", 9 - 1);
}


static ngx_uint_t
ngx_http_idem_is_wish(ngx_table_elt_t *h)
{
    ngx_uint_t  i;

    static const ngx_str_t  names[] = {
        ngx_string("accept-encoding"),
        ngx_string("range"),
        ngx_string("if-range"),
        ngx_string("if-none-match"),
        ngx_string("if-modified-since"),
        ngx_null_string
    };

    for (i = 0; names[i].len; i++) {
        if (names[i].len == h->key.len
            && ngx_strncmp(names[i].data, h->lowcase_key, h->key.len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


/* nginx itself may still compress the page for this client */

ngx_int_t
ngx_http_idem_inject_request(ngx_http_request_t *r)
{
    r->headers_in.range = NULL;
    r->headers_in.if_range = NULL;
    r->headers_in.if_none_match = NULL;
    r->headers_in.if_modified_since = NULL;

    return ngx_http_idem_strip(r, ngx_http_idem_is_wish);
}


/* the page belongs to one user and must not be in a shared cache; a browser may
 * keep it, so that going back shows the form with the same token */

ngx_int_t
ngx_http_idem_inject_header(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_request_t  *r = ctx->request;

    static ngx_str_t  name = ngx_string("Cache-Control");
    static ngx_str_t  value = ngx_string("private, no-cache");

    if (!ctx->page || ctx->conf->inject.len == 0 || ctx->next.len == 0
        || r->header_only || r->headers_out.content_type_len < 9
        || ngx_strncasecmp(r->headers_out.content_type.data,
                           (u_char *) "text/html", 9) != 0)
    {
        return NGX_OK;
    }

    if (r->headers_out.content_encoding
        && r->headers_out.content_encoding->value.len)
    {
        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "idem: the service compressed a page although it was "
                      "asked not to: its forms get no token");
        return NGX_OK;
    }

    ctx->inject = ngx_pcalloc(r->pool, sizeof(struct gateway_form_scan));
    if (ctx->inject == NULL) {
        return NGX_ERROR;
    }

    if (r->headers_in.host) {
        ctx->inject->host.data = r->headers_in.host->value.data;
        ctx->inject->host.len = r->headers_in.host->value.len;
    }

    r->filter_need_in_memory = 1;

    ngx_http_clear_content_length(r);
    ngx_http_clear_accept_ranges(r);
    ngx_http_clear_last_modified(r);
    ngx_http_clear_etag(r);

    return ngx_http_idem_set_header(r, &name, &value);
}


static ngx_int_t
ngx_http_idem_append(ngx_pool_t *pool, ngx_chain_t ***last, ngx_buf_t *b)
{
    ngx_chain_t  *cl;

    cl = ngx_alloc_chain_link(pool);
    if (cl == NULL) {
        return NGX_ERROR;
    }

    cl->buf = b;
    cl->next = NULL;

    **last = cl;
    *last = &cl->next;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_append_bytes(ngx_pool_t *pool, ngx_chain_t ***last, u_char *pos,
    u_char *end)
{
    ngx_buf_t  *b;

    if (pos == end) {
        return NGX_OK;
    }

    b = ngx_calloc_buf(pool);
    if (b == NULL) {
        return NGX_ERROR;
    }

    b->pos = pos;
    b->last = end;
    b->memory = 1;

    return ngx_http_idem_append(pool, last, b);
}


/* nginx refuses empty memory buffers, and the owner of this one, which is empty
 * now, reuses it: what it says goes on in a buffer without memory */

static ngx_int_t
ngx_http_idem_append_empty(ngx_pool_t *pool, ngx_chain_t ***last,
    ngx_buf_t *from)
{
    ngx_buf_t  *b;

    b = ngx_calloc_buf(pool);
    if (b == NULL) {
        return NGX_ERROR;
    }

    b->sync = 1;
    b->flush = from->flush;
    b->last_buf = from->last_buf;
    b->last_in_chain = from->last_in_chain;

    return ngx_http_idem_append(pool, last, b);
}


static ngx_int_t
ngx_http_idem_field(ngx_http_idem_ctx_t *ctx, ngx_str_t *field)
{
    static const char  format[] =
        "<input type=\"hidden\" name=\"%V\" value=\"%V\">";

    field->data = ngx_pnalloc(ctx->request->pool, sizeof(format)
                                                  + ctx->conf->inject.len
                                                  + ctx->next.len);
    if (field->data == NULL) {
        return NGX_ERROR;
    }

    field->len = ngx_sprintf(field->data, format, &ctx->conf->inject,
                             &ctx->next)
                 - field->data;

    return NGX_OK;
}


/* send what was kept back; copied, because the scan goes on and reuses its
 * memory */

static ngx_int_t
ngx_http_idem_append_held(ngx_http_idem_ctx_t *ctx, u_char *held, size_t *len,
    ngx_chain_t ***last)
{
    size_t   n = *len;
    u_char  *p;

    *len = 0;

    if (n == 0) {
        return NGX_OK;
    }

    p = ngx_pnalloc(ctx->request->pool, n);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(p, held, n);

    return ngx_http_idem_append_bytes(ctx->request->pool, last, p, p + n);
}


/* the end of the buffer: bytes that may begin an end tag are kept back until
 * the next buffer shows whether they do */

static ngx_int_t
ngx_http_idem_inject_rest(ngx_http_idem_ctx_t *ctx, ngx_buf_t *b,
    u_char *begun, size_t len, ngx_chain_t ***last)
{
    size_t                     held;
    struct gateway_form_scan  *scan = ctx->inject;

    held = b->last_buf || b->last_in_chain ? 0 : gateway_form_held(scan);

    if (held < len + (b->last - b->pos) || held == 0) {
        if (ngx_http_idem_append_held(ctx, begun, &len, last) != NGX_OK) {
            return NGX_ERROR;
        }

        b->last -= held;

    } else { /* only a few bytes, and all are kept back */
        b->pos = b->last;
    }

    scan->held = held;

    return NGX_OK;
}


/* split the buffer; the last part is the buffer itself, so that it is not
 * reused before all of it was sent */

static ngx_int_t
ngx_http_idem_inject_buf(ngx_http_idem_ctx_t *ctx, ngx_buf_t *b,
    ngx_str_t *field, ngx_chain_t ***last)
{
    size_t                     next, len;
    u_char                    *p, *place, begun[sizeof(ctx->inject->begun)];
    ptrdiff_t                  at;
    ngx_pool_t                *pool = ctx->request->pool;
    struct idem_bytes          bytes;
    struct gateway_form_scan  *scan = ctx->inject;

    p = b->pos;
    len = scan->held;
    ngx_memcpy(begun, scan->begun, sizeof(begun));

    if (!ngx_buf_in_memory(b)) {

        /* nothing follows the last buffer */

        if (b->last_buf || b->last_in_chain) {
            scan->held = 0;

            if (ngx_http_idem_append_held(ctx, begun, &len, last) != NGX_OK) {
                return NGX_ERROR;
            }
        }

        return ngx_http_idem_append(pool, last, b);
    }

    b->in_file = 0;              /* sendfile() would send all of it */

    for ( ;; ) {
        bytes.data = p;
        bytes.len = b->last - p;

        if (!gateway_form_next(scan, bytes, &at, &next)) {
            break;
        }

        place = p + (at > 0 ? at : 0);

        if ((at >= 0
             && ngx_http_idem_append_held(ctx, begun, &len, last) != NGX_OK)
            || ngx_http_idem_append_bytes(pool, last, b->pos, place) != NGX_OK
            || ngx_http_idem_append_bytes(pool, last, field->data,
                                          field->data + field->len)
               != NGX_OK
            || ngx_http_idem_append_held(ctx, begun, &len, last) != NGX_OK)
        {
            return NGX_ERROR;
        }

        b->pos = place;
        p += next;
    }

    if (ngx_http_idem_inject_rest(ctx, b, begun, len, last) != NGX_OK) {
        return NGX_ERROR;
    }

    return b->pos < b->last ? ngx_http_idem_append(pool, last, b)
                            : ngx_http_idem_append_empty(pool, last, b);
}


/* does this piece of the page have a place for the field, or may one begin
 * here? if not, scan has moved past it */

static ngx_uint_t
ngx_http_idem_has_place(struct gateway_form_scan *scan, ngx_chain_t *in)
{
    size_t                    next;
    ptrdiff_t                 at;
    struct idem_bytes         bytes;
    struct gateway_form_scan  look;

    if (scan->held) {
        return 1;
    }

    look = *scan;

    for ( /* void */ ; in; in = in->next) {
        if (!ngx_buf_in_memory(in->buf)) {
            continue;
        }

        bytes.data = in->buf->pos;
        bytes.len = in->buf->last - in->buf->pos;

        if (gateway_form_next(&look, bytes, &at, &next)) {
            return 1;
        }
    }

    if (gateway_form_held(&look)) {
        return 1;
    }

    *scan = look;

    return 0;
}


ngx_int_t
ngx_http_idem_inject_body(ngx_http_idem_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_str_t     field;
    ngx_chain_t  *out, **last;

    if (!ngx_http_idem_has_place(ctx->inject, in)) {
        return ngx_http_idem_next_body_filter(ctx->request, in);
    }

    out = NULL;
    last = &out;

    if (ngx_http_idem_field(ctx, &field) != NGX_OK) {
        return NGX_ERROR;
    }

    for ( /* void */ ; in; in = in->next) {
        if (ngx_http_idem_inject_buf(ctx, in->buf, &field, &last) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return ngx_http_idem_next_body_filter(ctx->request, out);
}
