
/*
 * ngx_http_idem_answer.c - what idem itself says to a client: problems
 * (application/problem+json, see docs/problems.md) and stored answers.
 */


#include "ngx_http_idem.h"
#include "json.h"


/* what the table of problems does not say: the words for people */

struct ngx_http_idem_problem_s {
    enum idem__problem   type;
    ngx_uint_t           status;    /* 0: that of the type */
    const char          *detail;
};


const ngx_http_idem_problem_t  ngx_http_idem_key_missing = {
    IDEM_PROBLEM_KEY_MISSING, 0,
    "Send a key that is unique for this request, for instance a UUID, and the "
    "same key again with every retry of it."
};


const ngx_http_idem_problem_t  ngx_http_idem_key_malformed = {
    IDEM_PROBLEM_KEY_MALFORMED, 0,
    "The key is not one."
};


const ngx_http_idem_problem_t  ngx_http_idem_key_unused = {
    IDEM_PROBLEM_KEY_UNUSED, 0,
    "This caller has sent no request with this key, or it was free to run "
    "again, or its answer has expired. Sending it now is safe."
};


const ngx_http_idem_problem_t  ngx_http_idem_in_progress = {
    IDEM_PROBLEM_IN_PROGRESS, 0,
    "Send the same request again after a while: it will not run twice."
};


const ngx_http_idem_problem_t  ngx_http_idem_mismatch = {
    IDEM_PROBLEM_MISMATCH, 0,
    "A key names one request with one content. Use a new key for a new "
    "request."
};


const ngx_http_idem_problem_t  ngx_http_idem_doubt = {
    IDEM_PROBLEM_OUTCOME_UNKNOWN, 0,
    "The first request with this key was started and its outcome was lost. It "
    "will not be run again. Ask the service, or have an operator settle it."
};


const ngx_http_idem_problem_t  ngx_http_idem_unknown = {
    IDEM_PROBLEM_OUTCOME_UNKNOWN, 504,
    "The request was sent to the service and no complete answer came back, or "
    "it could not be recorded. Do not repeat it with another key."
};


const ngx_http_idem_problem_t  ngx_http_idem_duplicate = {
    IDEM_PROBLEM_DUPLICATE, 0,
    "The request was done before and is not done a second time."
};


const ngx_http_idem_problem_t  ngx_http_idem_settled = {
    IDEM_PROBLEM_SETTLED, 0,
    "It was declared failed and will not be run."
};


const ngx_http_idem_problem_t  ngx_http_idem_failed = {
    IDEM_PROBLEM_FAILED, 0,
    "The first request with this key failed. It will not be run again."
};


const ngx_http_idem_problem_t  ngx_http_idem_token_unknown = {
    IDEM_PROBLEM_TOKEN_UNKNOWN, 0,
    "The token was not issued to this caller, or it has expired. Ask for a new "
    "one."
};


const ngx_http_idem_problem_t  ngx_http_idem_not_replayable = {
    IDEM_PROBLEM_NOT_REPLAYABLE, 0,
    "The request was done before. Its answer was too large to keep."
};


const ngx_http_idem_problem_t  ngx_http_idem_not_served = {
    IDEM_PROBLEM_NOT_REPLAYABLE, 0,
    "The request was done. The service left its answer to the gateway, which "
    "could not serve it."
};


const ngx_http_idem_problem_t  ngx_http_idem_not_executed = {
    IDEM_PROBLEM_NOT_EXECUTED, 0,
    "idem could not record the request, so it was not sent to the service. "
    "Sending it again is safe."
};


const ngx_http_idem_problem_t  ngx_http_idem_body_too_large = {
    IDEM_PROBLEM_BODY_TOO_LARGE, 0,
    "The body is over the limit for requests with an idempotency key."
};


const ngx_http_idem_problem_t  ngx_http_idem_unreachable = {
    IDEM_PROBLEM_UNREACHABLE, 0,
    "Nothing was sent to the service. Sending the request again is safe."
};


const ngx_http_idem_problem_t  ngx_http_idem_anonymous = {
    IDEM_PROBLEM_CALLER_UNKNOWN, 0,
    "Send a credential: a key belongs to the caller who uses it."
};


const ngx_http_idem_problem_t  ngx_http_idem_scope_refused = {
    IDEM_PROBLEM_SCOPE_REFUSED, 0,
    "The value that names the caller is too long, was sent twice, or holds "
    "bytes that it must not."
};


const ngx_http_idem_problem_t  ngx_http_idem_scope_missing = {
    IDEM_PROBLEM_SCOPE_MISSING, 0,
    "A key belongs to the caller who uses it. The header, parameter or field "
    "that names the caller here is missing or empty."
};


ngx_int_t
ngx_http_idem_add_header(ngx_http_request_t *r, const char *name,
    ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
    h->key.data = (u_char *) name;
    h->key.len = ngx_strlen(name);
    h->value = *value;

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_add_expires(ngx_http_request_t *r, int64_t expires)
{
    time_t            sec;
    ngx_str_t         value;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    static time_t     last;
    static size_t     len;
    static u_char     text[sizeof("Mon, 28 Sep 1970 06:00:00 GMT")];
    static ngx_str_t  name = ngx_string("Idempotency-Expires");

    if (expires <= 0) {
        return NGX_OK;
    }

    /* a service that says so itself does not know when our record expires */

    i = 0;
    part = &r->headers_out.headers.part;

    while ((h = ngx_http_idem_next_header(&part, &i, &name)) != NULL) {
        h->hash = 0;
    }

    /* what is recorded within a second expires within a second */

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

    return ngx_http_idem_add_header(r, (char *) name.data, &value);
}


/* a body of one buffer that ends the answer */

static ngx_chain_t *
ngx_http_idem_body(ngx_http_request_t *r, u_char *pos, u_char *last)
{
    ngx_buf_t    *b;
    ngx_chain_t  *out;

    out = ngx_alloc_chain_link(r->pool);
    b = ngx_calloc_buf(r->pool);

    if (out == NULL || b == NULL) {
        return NULL;
    }

    b->pos = pos;
    b->last = last;
    b->memory = (pos != last);
    b->last_buf = 1;
    b->last_in_chain = 1;

    out->buf = b;
    out->next = NULL;

    return out;
}


ngx_chain_t *
ngx_http_idem_problem_answer(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, const ngx_http_idem_problem_t *problem,
    ngx_uint_t status, const char *detail, ngx_uint_t retry_after)
{
    u_char                           *p, *last;
    size_t                            len;
    ngx_str_t                         link, value;
    ngx_http_idem_main_conf_t        *mcf;
    const struct idem__problem_type  *type;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idem_module);
    type = idem__problem_type(problem->type);

    if (status == 0) {
        status = problem->status ? problem->status : type->status;
    }

    if (detail == NULL) {
        detail = problem->detail;
    }

    ngx_http_clean_header(r);
    r->headers_out.status = status;
    r->err_status = 0;

    /* nginx has no words for this one */

    if (status == 422) {
        ngx_str_set(&r->headers_out.status_line, "422 Unprocessable Content");
    }

    ngx_str_set(&r->headers_out.content_type, "application/problem+json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    /* where it is explained: the operator's page, or the type itself */

    link = conf->docs;

    len = mcf->problem_base.len + ngx_strlen(type->name)
          + link.len + sizeof("<>; rel=\"describedby\"") + 8;

    p = ngx_pnalloc(r->pool, len);
    if (p == NULL) {
        return NULL;
    }

    value.data = p;

    if (link.len) {
        p = ngx_sprintf(p, "<%V#%s>; rel=\"describedby\"", &link,
                        type->name);
    } else {
        p = ngx_sprintf(p, "<%V%s>; rel=\"describedby\"", &mcf->problem_base,
                        type->name);
    }

    value.len = p - value.data;

    if (ngx_http_idem_add_header(r, "Link", &value) != NGX_OK) {
        return NULL;
    }

    ngx_str_set(&value, "no-store");

    if (ngx_http_idem_add_header(r, "Cache-Control", &value) != NGX_OK) {
        return NULL;
    }

    if (retry_after) {
        value.data = ngx_pnalloc(r->pool, NGX_INT_T_LEN);
        if (value.data == NULL) {
            return NULL;
        }

        value.len = ngx_sprintf(value.data, "%ui", retry_after) - value.data;

        if (ngx_http_idem_add_header(r, "Retry-After", &value) != NGX_OK) {
            return NULL;
        }
    }

    /* all of these texts are ours; quotes and backslashes are escaped */

    len = 2 * (mcf->problem_base.len + ngx_strlen(type->name))
          + ngx_strlen(type->title) + 2 * ngx_strlen(detail)
          + link.len + 256;

    p = ngx_pnalloc(r->pool, len);
    if (p == NULL) {
        return NULL;
    }

    last = ngx_sprintf(p, "{\"type\":\"%V%s\",\"title\":\"%s\",\"status\":%ui,"
                          "\"detail\":\"", &mcf->problem_base, type->name,
                       type->title, status);

    last = (u_char *) ngx_escape_json(last, (u_char *) detail,
                                      ngx_strlen(detail));

    last = ngx_sprintf(last, "\",\"retryable\":%s,\"class\":\"%s\","
                             "\"documentation\":\"",
                       type->retryable ? "true" : "false",
                       idem__class_name(type->class));

    if (link.len) {
        last = ngx_sprintf(last, "%V#%s\"}\n", &link, type->name);
    } else {
        last = ngx_sprintf(last, "%V%s\"}\n", &mcf->problem_base,
                           type->name);
    }

    r->headers_out.content_length_n = last - p;

    return ngx_http_idem_body(r, p, last);
}


static ngx_int_t
ngx_http_idem_send(ngx_http_request_t *r, ngx_chain_t *out)
{
    ngx_int_t  rc;

    /* who waits for "100 Continue" need not send the body at all */

    r->expect_tested = 1;

    if (out == NULL || ngx_http_discard_request_body(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->disable_not_modified = 1;
    r->allow_ranges = 0;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, out);
}


ngx_int_t
ngx_http_idem_send_problem(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, const ngx_http_idem_problem_t *problem,
    const char *detail, ngx_uint_t retry_after)
{
    ngx_chain_t          *out;
    ngx_http_idem_ctx_t  *ctx;

    out = ngx_http_idem_problem_answer(r, conf, problem, 0, detail,
                                       retry_after);

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx && ngx_http_idem_add_expires(r, ctx->expires) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_idem_send(r, out);
}


ngx_int_t
ngx_http_idem_send_text(ngx_http_request_t *r, ngx_uint_t status,
    ngx_str_t *type, ngx_str_t *body)
{
    ngx_chain_t  *out;

    r->headers_out.status = status;
    r->headers_out.content_type = *type;
    r->headers_out.content_type_len = type->len;
    r->headers_out.content_type_lowcase = NULL;
    r->headers_out.content_length_n = body->len;

    out = ngx_http_idem_body(r, body->data, body->data + body->len);

    return ngx_http_idem_send(r, out);
}


ngx_int_t
ngx_http_idem_send_fixed(ngx_http_request_t *r, ngx_http_idem_loc_conf_t *conf)
{
    ngx_http_idem_ctx_t  *ctx;

    static ngx_str_t  type = ngx_string("text/plain; charset=utf-8");
    static ngx_str_t  no_store = ngx_string("no-store");

    ctx = ngx_http_idem_get_ctx(r);

    if (ngx_http_idem_add_header(r, "Cache-Control", &no_store) != NGX_OK
        || ngx_http_idem_add_expires(r, ctx->expires) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_idem_send_text(r, conf->duplicate_status, &type,
                                   &conf->duplicate_text);
}


/* nginx finds some headers by a pointer, not by looking through the list */

static void
ngx_http_idem_known_header(ngx_http_request_t *r, ngx_table_elt_t *h)
{
    ngx_uint_t          i;
    ngx_table_elt_t   **to;

    static const struct {
        ngx_str_t       name;
        size_t          offset;
    } known[] = {
        { ngx_string("content-encoding"),
          offsetof(ngx_http_headers_out_t, content_encoding) },
        { ngx_string("etag"), offsetof(ngx_http_headers_out_t, etag) },
        { ngx_string("last-modified"),
          offsetof(ngx_http_headers_out_t, last_modified) },
        { ngx_string("refresh"), offsetof(ngx_http_headers_out_t, refresh) },
        { ngx_string("content-range"),
          offsetof(ngx_http_headers_out_t, content_range) },
        { ngx_string("accept-ranges"),
          offsetof(ngx_http_headers_out_t, accept_ranges) },
        { ngx_string("www-authenticate"),
          offsetof(ngx_http_headers_out_t, www_authenticate) },
        { ngx_string("expires"), offsetof(ngx_http_headers_out_t, expires) },
        { ngx_null_string, 0 }
    };

    for (i = 0; known[i].name.len; i++) {
        if (known[i].name.len == h->key.len
            && ngx_strncasecmp(known[i].name.data, h->key.data, h->key.len)
               == 0)
        {
            to = (ngx_table_elt_t **) ((char *) &r->headers_out
                                       + known[i].offset);
            *to = h;
            return;
        }
    }
}


static ngx_int_t
ngx_http_idem_header_is(struct gateway_header *h, const char *name)
{
    return h->name.len == ngx_strlen(name)
           && ngx_strncasecmp((u_char *) h->name.data, (u_char *) name,
                              h->name.len) == 0;
}


static void
ngx_http_idem_set_type(ngx_http_request_t *r, struct gateway_header *h)
{
    u_char  *p, *last;

    r->headers_out.content_type.data = (u_char *) h->value.data;
    r->headers_out.content_type.len = h->value.len;
    r->headers_out.content_type_len = h->value.len;
    r->headers_out.content_type_lowcase = NULL;

    /* a charset of its own: no filter is to add one */

    p = (u_char *) h->value.data;
    last = ngx_strlchr(p, p + h->value.len, ';');

    if (last && ngx_strlcasestrn(last, p + h->value.len,
                                 (u_char *) "charset=", 8 - 1))
    {
        r->headers_out.content_type_len = last - p;
    }
}


/* the stored bytes live as long as the request */

ngx_int_t
ngx_http_idem_send_replay(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_str_t *stored, int64_t expires, ngx_uint_t replayed)
{
    ngx_str_t               value;
    ngx_uint_t              i;
    ngx_chain_t            *out;
    const char             *flaw;
    ngx_table_elt_t        *h;
    struct idem_bytes       bytes;
    struct gateway_header  *header;
    struct gateway_result   result;

    bytes.data = stored->data;
    bytes.len = stored->len;

    flaw = gateway_result_read(bytes, &result);

    if (flaw) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idem: a stored answer cannot be replayed: %s", flaw);
        return ngx_http_idem_send_problem(r, ctx->conf,
                                          &ngx_http_idem_not_replayable,
                                          "The request was done before. What "
                                          "is stored is not an HTTP answer.",
                                          0);
    }

    ngx_http_clean_header(r);

    r->headers_out.status = result.status;
    r->headers_out.content_length_n = result.body.len;

    /* the length of a body that is not sent is not known any more */

    if (r->method == NGX_HTTP_HEAD || result.status == NGX_HTTP_NOT_MODIFIED) {
        r->headers_out.content_length_n = -1;
    }

    for (i = 0; i < result.header_count; i++) {
        header = &result.headers[i];

        if (ngx_http_idem_header_is(header, "content-type")) {
            ngx_http_idem_set_type(r, header);
            continue;
        }

        if (replayed && (ngx_http_idem_header_is(header, "cache-control")
                         || ngx_http_idem_header_is(header, "expires")))
        {
            continue;
        }

        h = ngx_list_push(&r->headers_out.headers);
        if (h == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        h->hash = 1;
        h->key.data = (u_char *) header->name.data;
        h->key.len = header->name.len;
        h->value.data = (u_char *) header->value.data;
        h->value.len = header->value.len;

        ngx_http_idem_known_header(r, h);
    }

    if (replayed) {
        ngx_str_set(&value, "true");

        if (ngx_http_idem_add_header(r, "Idempotent-Replayed", &value)
            != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        ngx_str_set(&value, "no-store");

        if (ngx_http_idem_add_header(r, "Cache-Control", &value) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    if (ngx_http_idem_add_expires(r, expires) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    out = ngx_http_idem_body(r, (u_char *) result.body.data,
                             (u_char *) result.body.data + result.body.len);

    return ngx_http_idem_send(r, out);
}


/* larger results are not looked through for every replay */
#define NGX_HTTP_IDEM_LOOK_MAX  65536


static ngx_uint_t
ngx_http_idem_is_json(ngx_http_request_t *r, ngx_str_t *stored)
{
    size_t             len;
    uint8_t           *out;
    struct idem_bytes  in, all;

    in.data = stored->data;
    in.len = stored->len;
    all.data = NULL;
    all.len = 0;

    if (stored->data[0] != '{' && stored->data[0] != '[') {
        return 0;
    }

    out = ngx_pnalloc(r->pool, gateway_json_canonical_max(stored->len));

    return out != NULL && gateway_json_canonical(in, all, out, &len);
}


static ngx_uint_t
ngx_http_idem_is_text(ngx_str_t *stored)
{
    u_char    *p, *last;
    uint32_t   c;

    p = stored->data;
    last = p + stored->len;

    while (p < last) {
        c = *p;

        if (c < 0x20 && c != '\t' && c != CR && c != LF) {
            return 0;
        }

        if (c < 0x80) {
            p++;

        } else if (ngx_utf8_decode(&p, last - p) > 0x10ffff) {
            return 0;
        }
    }

    return 1;
}


/*
 * succeeded by the word of somebody who did not write an HTTP answer: an
 * operator, or a service that finished the record itself
 */

ngx_int_t
ngx_http_idem_send_raw(ngx_http_request_t *r, ngx_str_t *stored,
    int64_t expires)
{
    ngx_str_t   value, *type;
    ngx_uint_t  look;

    static ngx_str_t  none = ngx_null_string;
    static ngx_str_t  json = ngx_string("application/json");
    static ngx_str_t  text = ngx_string("text/plain; charset=utf-8");
    static ngx_str_t  bytes = ngx_string("application/octet-stream");

    ngx_str_set(&value, "true");

    if (ngx_http_idem_add_header(r, "Idempotent-Replayed", &value) != NGX_OK
        || ngx_http_idem_add_expires(r, expires) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_str_set(&value, "no-store");

    if (ngx_http_idem_add_header(r, "Cache-Control", &value) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (stored->len == 0) {
        return ngx_http_idem_send_text(r, NGX_HTTP_NO_CONTENT, &none, stored);
    }

    look = stored->len <= NGX_HTTP_IDEM_LOOK_MAX;

    if (look && ngx_http_idem_is_json(r, stored)) {
        type = &json;

    } else if (look && ngx_http_idem_is_text(stored)) {
        type = &text;

    } else {
        type = &bytes;
    }

    return ngx_http_idem_send_text(r, NGX_HTTP_OK, type, stored);
}
