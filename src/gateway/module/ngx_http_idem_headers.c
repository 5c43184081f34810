
/*
 * ngx_http_idem_headers.c - find, remove and add headers of requests and of
 * responses.
 */


#include "ngx_http_idem.h"


/* nginx has the names of a request's headers in lower case, too */

static ngx_inline ngx_uint_t
ngx_http_idem_named(ngx_table_elt_t *h, ngx_str_t *name)
{
    return h->key.len == name->len
           && (h->lowcase_key
               ? ngx_memcmp(h->lowcase_key, name->data, name->len) == 0
               : ngx_strncasecmp(h->key.data, name->data, name->len) == 0);
}


ngx_table_elt_t *
ngx_http_idem_next_header(ngx_list_part_t **part, ngx_uint_t *i,
    ngx_str_t *name)
{
    ngx_table_elt_t  *h;

    for ( ;; ) {

        if (*i >= (*part)->nelts) {
            if ((*part)->next == NULL) {
                return NULL;
            }

            *part = (*part)->next;
            *i = 0;
            continue;
        }

        h = (ngx_table_elt_t *) (*part)->elts + (*i)++;

        if (name == NULL
            || (h->key.len == name->len
                && ngx_strncasecmp(h->key.data, name->data, name->len) == 0))
        {
            return h;
        }
    }
}


ngx_int_t
ngx_http_idem_find_header(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value, ngx_uint_t *count)
{
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h, *end;

    *count = 0;

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (end = h + part->nelts; h < end; h++) {
            if (ngx_http_idem_named(h, name)) {
                *value = h->value;
                (*count)++;
            }
        }
    }

    return *count ? NGX_OK : NGX_DECLINED;
}


/*
 * W3C Trace Context: 00-(trace, 32 digits)-(parent, 16 digits)-(flags, 2), all
 * in lower case, neither id zero.  Only a valid one is kept, because it is
 * passed on to others later.
 */

static ngx_uint_t
ngx_http_idem_is_trace(ngx_str_t *s)
{
    u_char       c, any[4];
    ngx_uint_t   i, part;

    if (s->len != NGX_HTTP_IDEM_TRACE_LEN
        || ngx_strncmp(s->data, "ff", 2) == 0)
    {
        return 0;
    }

    part = 0;
    ngx_memzero(any, sizeof(any));

    for (i = 0; i < s->len; i++) {
        c = s->data[i];

        if (i == 2 || i == 35 || i == 52) {
            if (c != '-') {
                return 0;
            }

            part++;
            continue;
        }

        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) {
            return 0;
        }

        any[part] |= (c != '0');
    }

    return any[1] && any[2];
}


/* the trace of this request; empty: none, or not a valid one */

void
ngx_http_idem_find_trace(ngx_http_request_t *r, ngx_str_t *trace)
{
    ngx_uint_t  count;

    static ngx_str_t  name = ngx_string("traceparent");

    if (ngx_http_idem_find_header(r, &name, trace, &count) != NGX_OK
        || count > 1 || !ngx_http_idem_is_trace(trace))
    {
        ngx_str_null(trace);
    }
}


/* remove the matching headers of the request, without copying values */

ngx_int_t
ngx_http_idem_strip(ngx_http_request_t *r,
    ngx_uint_t (*matches)(ngx_table_elt_t *h))
{
    ngx_list_t        kept;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h, *copy;

    i = 0;
    part = &r->headers_in.headers.part;

    do {
        h = ngx_http_idem_next_header(&part, &i, NULL);

        if (h == NULL) {
            return NGX_OK;
        }

    } while (!matches(h));

    if (ngx_list_init(&kept, r->pool, 20, sizeof(ngx_table_elt_t)) != NGX_OK) {
        return NGX_ERROR;
    }

    i = 0;
    part = &r->headers_in.headers.part;

    while ((h = ngx_http_idem_next_header(&part, &i, NULL)) != NULL) {

        if (matches(h)) {
            continue;
        }

        copy = ngx_list_push(&kept);
        if (copy == NULL) {
            return NGX_ERROR;
        }

        *copy = *h;
    }

    r->headers_in.headers = kept;

    /* the list's own first part has moved with it */

    if (r->headers_in.headers.last == &kept.part) {
        r->headers_in.headers.last = &r->headers_in.headers.part;
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_idem_is_ours(ngx_table_elt_t *h)
{
    return h->key.len > 4 && ngx_strncmp(h->lowcase_key, "idem", 4) == 0
           && (h->lowcase_key[4] == '-' || h->lowcase_key[4] == '_');
}


static ngx_uint_t
ngx_http_idem_is_upgrade(ngx_table_elt_t *h)
{
    return h->key.len == 7 && ngx_strncmp(h->lowcase_key, "upgrade", 7) == 0;
}


static ngx_uint_t
ngx_http_idem_is_odd_upgrade(ngx_table_elt_t *h)
{
    return ngx_http_idem_is_upgrade(h)
           && (h->value.len != 9
               || ngx_strncasecmp(h->value.data, (u_char *) "websocket", 9)
                  != 0);
}


/* Idem-* headers carry idem's decisions to the service, so clients must not
 * send them */

ngx_int_t
ngx_http_idem_strip_handler(ngx_http_request_t *r)
{
    /* no error page, to whose location they would be sent */

    return ngx_http_idem_strip(r, ngx_http_idem_is_ours) == NGX_OK
           ? NGX_DECLINED : NGX_ERROR;
}


/*
 * An upgrade to another protocol is a tunnel to the service, through which
 * requests would pass this gate unseen (h2c).  A WebSocket carries no requests.
 * nginx only switches protocols if it sees an Upgrade header.
 */

ngx_int_t
ngx_http_idem_strip_upgrade(ngx_http_request_t *r)
{
    ngx_str_t         name = ngx_string("upgrade");
    ngx_uint_t        i;
    ngx_list_part_t  *part;

    if (r->headers_in.upgrade == NULL) {
        return NGX_OK;
    }

    if (ngx_http_idem_strip(r, ngx_http_idem_is_odd_upgrade) != NGX_OK) {
        return NGX_ERROR;
    }

    i = 0;
    part = &r->headers_in.headers.part;
    r->headers_in.upgrade = ngx_http_idem_next_header(&part, &i, &name);

    return NGX_OK;
}


/*
 * Duplicates get the same response, so it must be complete: no range, no "not
 * modified", which only this client understands, and no other protocol. The
 * service still sees which part the client asked for.
 */

ngx_int_t
ngx_http_idem_forget_wishes(ngx_http_request_t *r)
{
    r->headers_in.range = NULL;
    r->headers_in.if_range = NULL;
    r->headers_in.if_match = NULL;
    r->headers_in.if_none_match = NULL;
    r->headers_in.if_modified_since = NULL;
    r->headers_in.if_unmodified_since = NULL;
    r->headers_in.upgrade = NULL;

    return ngx_http_idem_strip(r, ngx_http_idem_is_upgrade);
}


/* nginx 1.23 and later read members of a header that older ones do not have */

ngx_table_elt_t *
ngx_http_idem_push_header(ngx_list_t *list)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(list);
    if (h != NULL) {
        ngx_memzero(h, sizeof(ngx_table_elt_t));
    }

    return h;
}


ngx_int_t
ngx_http_idem_tell_service(ngx_http_request_t *r,
    ngx_http_idem_header_name_t *name, ngx_str_t *value)
{
    ngx_list_t       *list;
    ngx_table_elt_t  *h;

    if (name->hash == 0) {
        name->hash = ngx_hash_key(name->lowcase, name->name.len);
    }

    list = &r->headers_in.headers;

    /* a request of HTTP/0.9 has no headers, so nginx made no list of them */

    if (list->last == NULL
        && ngx_list_init(list, r->pool, 4, sizeof(ngx_table_elt_t)) != NGX_OK)
    {
        return NGX_ERROR;
    }

    h = ngx_http_idem_push_header(list);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->key = name->name;
    h->lowcase_key = name->lowcase;
    h->hash = name->hash;
    h->value = *value;

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_add_header(ngx_http_request_t *r, const char *name,
    ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_http_idem_push_header(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
    h->key.data = (u_char *) name;
    h->key.len = ngx_strlen(name);
    h->value = *value;

    return NGX_OK;
}


/* replaces a header of this name that the service may have sent */

ngx_int_t
ngx_http_idem_set_header(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    i = 0;
    part = &r->headers_out.headers.part;

    while ((h = ngx_http_idem_next_header(&part, &i, name)) != NULL) {
        h->hash = 0;
    }

    return ngx_http_idem_add_header(r, (char *) name->data, value);
}


ngx_int_t
ngx_http_idem_add_no_store(ngx_http_request_t *r)
{
    static ngx_str_t  value = ngx_string("no-store");

    return ngx_http_idem_add_header(r, "Cache-Control", &value);
}


ngx_int_t
ngx_http_idem_add_expires(ngx_http_request_t *r, int64_t expires)
{
    time_t            sec;
    ngx_str_t         value;

    static time_t     last;
    static size_t     len;
    static u_char     text[sizeof("Mon, 28 Sep 1970 06:00:00 GMT")];
    static ngx_str_t  name = ngx_string("Idempotency-Expires");

    if (expires <= 0) {
        return NGX_OK;
    }

    /* many records expire in the same second: reuse the text of the last one */

    sec = (time_t) (expires / 1000);

    if (sec != last) {
        len = ngx_http_time(text, sec) - text;
        last = sec;
    }

    value.len = len;
    value.data = ngx_pnalloc(r->pool, len);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(value.data, text, len);

    return ngx_http_idem_set_header(r, &name, &value);
}
