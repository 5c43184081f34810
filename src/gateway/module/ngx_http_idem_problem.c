
/*
 * ngx_http_idem_problem.c - problems (application/problem+json, see
 * docs/problems.md).
 */


#include "ngx_http_idem.h"


/* what the table of problems does not have: the texts for people */

struct ngx_http_idem_problem_s {
    enum idem__problem   type;
    ngx_uint_t           status;    /* 0: the type's status */
    const char          *detail;
};


const ngx_http_idem_problem_t  ngx_http_idem_key_missing = {
    IDEM_PROBLEM_KEY_MISSING, 0,
    "Send a key (by default the header Idempotency-Key) that is unique for "
    "this request, for instance a UUID, and the same key again with every "
    "retry of it."
};


const ngx_http_idem_problem_t  ngx_http_idem_key_malformed = {
    IDEM_PROBLEM_KEY_MALFORMED, 0,
    "The key cannot be read."
};


const ngx_http_idem_problem_t  ngx_http_idem_key_unused = {
    IDEM_PROBLEM_KEY_UNUSED, 0,
    "This caller has sent no request with this key, or it was free to run "
    "again, or its response has expired. Sending it now is safe."
};


const ngx_http_idem_problem_t  ngx_http_idem_in_progress = {
    IDEM_PROBLEM_IN_PROGRESS, 0,
    "Send the same request again after a while: it will not run twice."
};


const ngx_http_idem_problem_t  ngx_http_idem_mismatch = {
    IDEM_PROBLEM_MISMATCH, 0,
    "This key was used for a request with another method, host, path, query or "
    "body. If this is a retry, send exactly the first request again: with a "
    "new key it could run twice. Use a new key only for a new request."
};


const ngx_http_idem_problem_t  ngx_http_idem_same_content = {
    IDEM_PROBLEM_SAME_CONTENT, 0,
    "A request with the same content and another key came from this caller a "
    "moment ago. If both are meant, send this one again later."
};


const ngx_http_idem_problem_t  ngx_http_idem_doubt = {
    IDEM_PROBLEM_OUTCOME_UNKNOWN, 0,
    "The first request with this key was started and its outcome was lost. It "
    "will not be run again. Ask the service, or have an operator settle it."
};


const ngx_http_idem_problem_t  ngx_http_idem_unknown = {
    IDEM_PROBLEM_OUTCOME_UNKNOWN, 504,
    "The request was sent to the service, but no complete response came back, "
    "or it could not be recorded. Do not repeat it with another key."
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
    "The request was done before. Its response was too large to keep."
};


const ngx_http_idem_problem_t  ngx_http_idem_not_served = {
    IDEM_PROBLEM_NOT_REPLAYABLE, 0,
    "The request was done. The service left its response to the gateway, "
    "which could not serve it."
};


const ngx_http_idem_problem_t  ngx_http_idem_not_executed = {
    IDEM_PROBLEM_NOT_EXECUTED, 0,
    "idem could not record this attempt, so it was not sent to the service. An "
    "earlier attempt with the same key may have been executed: keep the key, "
    "and retry with it."
};


const ngx_http_idem_problem_t  ngx_http_idem_over_quota = {
    IDEM_PROBLEM_QUOTA, 0,
    "The request was not sent to the service. Send it again later."
};


const ngx_http_idem_problem_t  ngx_http_idem_body_too_large = {
    IDEM_PROBLEM_BODY_TOO_LARGE, 0,
    "The body is over the limit for requests with an idempotency key: send a "
    "smaller one."
};


const ngx_http_idem_problem_t  ngx_http_idem_unreachable = {
    IDEM_PROBLEM_UNREACHABLE, 0,
    "Nothing was sent to the service. Sending the request again is safe."
};


const ngx_http_idem_problem_t  ngx_http_idem_anonymous = {
    IDEM_PROBLEM_CALLER_UNKNOWN, 0,
    "Send a credential (by default Authorization, X-Api-Key or a cookie): a "
    "key belongs to the caller who uses it."
};


const ngx_http_idem_problem_t  ngx_http_idem_scope_refused = {
    IDEM_PROBLEM_SCOPE_REFUSED, 0,
    "The value that names the caller cannot be used: it was sent twice, is "
    "longer than 200 bytes, has a control character or a space at an end, or "
    "begins with \"idem.\" or \"caller-\", which are reserved."
};


const ngx_http_idem_problem_t  ngx_http_idem_scope_missing = {
    IDEM_PROBLEM_SCOPE_MISSING, 0,
    "A key belongs to the caller who uses it. The header, parameter or field "
    "that names the caller is missing or empty: send the one that this "
    "route's setting \"scope\" names."
};


const ngx_http_idem_problem_t  ngx_http_idem_first_sent_expired = {
    IDEM_PROBLEM_FIRST_SENT_EXPIRED, 0,
    "The records of requests that are this old have expired, so it could run "
    "a second time. Find out its outcome before you send a new request."
};


const ngx_http_idem_problem_t  ngx_http_idem_not_repeatable = {
    IDEM_PROBLEM_NOT_REPEATABLE, 0,
    "Send it without Repeatability-Request-ID, or use a method that the "
    "gateway protects on this route."
};


/*
 * The page that a problem's type leads to.  Every server of this nginx has it,
 * independent of its locations, unless "idem_problem_base" leads to another
 * place.  Other paths below /.idem/ go to the service.
 */

ngx_int_t
ngx_http_idem_problem_page_handler(ngx_http_request_t *r)
{
    size_t                      prefix;
    ngx_str_t                   name, page;
    ngx_uint_t                  i;
    ngx_list_part_t            *part;
    ngx_table_elt_t            *h;
    struct idem_bytes           languages;
    enum idem__problem          problem;
    ngx_http_idem_main_conf_t  *mcf;

    static ngx_str_t  type = ngx_string(PROBLEM_PAGE_TYPE);

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idem_module);
    prefix = sizeof(IDEM_GATEWAY_PROBLEM_BASE) - 1;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))
        || r->uri.len <= prefix
        || ngx_strncmp(r->uri.data, IDEM_GATEWAY_PROBLEM_BASE, prefix) != 0
        || mcf->problem_base.len != prefix
        || ngx_strncmp(mcf->problem_base.data, IDEM_GATEWAY_PROBLEM_BASE,
                       prefix) != 0
        || !problem_page_find((struct idem_bytes) { r->uri.data + prefix,
                                                    r->uri.len - prefix },
                              &problem))
    {
        return NGX_DECLINED;
    }

    i = 0;
    part = &r->headers_in.headers.part;
    ngx_str_set(&name, "accept-language");
    h = ngx_http_idem_next_header(&part, &i, &name);

    languages.data = h ? (char *) h->value.data : "";
    languages.len = h ? h->value.len : 0;

    page.data = ngx_pnalloc(r->pool, PROBLEM_PAGE_MAX);

    if (page.data == NULL || ngx_http_idem_add_no_store(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    page.len = problem_page(problem, languages, (char *) page.data);

    ngx_http_finalize_request(r, ngx_http_idem_send_text(r, NGX_HTTP_OK, &type,
                                                         &page));
    return NGX_DONE;
}


/* the link to the explanation: the operator's page, or the type itself */

static ngx_int_t
ngx_http_idem_problem_url(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, ngx_str_t *base, const char *type,
    ngx_str_t *url)
{
    u_char  *p;

    p = ngx_pnalloc(r->pool, ngx_max(conf->docs.len, base->len) + 1
                             + ngx_strlen(type));
    if (p == NULL) {
        return NGX_ERROR;
    }

    url->data = p;
    p = conf->docs.len ? ngx_sprintf(p, "%V#%s", &conf->docs, type)
                       : ngx_sprintf(p, "%V%s", base, type);
    url->len = p - url->data;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_problem_headers(ngx_http_request_t *r, ngx_str_t *url,
    ngx_uint_t retry_after)
{
    ngx_str_t  value;

    value.data = ngx_pnalloc(r->pool, url->len
                                      + sizeof("<>; rel=\"describedby\""));
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    value.len = ngx_sprintf(value.data, "<%V>; rel=\"describedby\"", url)
                - value.data;

    if (ngx_http_idem_add_header(r, "Link", &value) != NGX_OK
        || ngx_http_idem_add_no_store(r) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (retry_after == 0) {
        return NGX_OK;
    }

    value.data = ngx_pnalloc(r->pool, NGX_INT_T_LEN);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    value.len = ngx_sprintf(value.data, "%ui", retry_after) - value.data;

    return ngx_http_idem_add_header(r, "Retry-After", &value);
}


/* all of these texts except the key are ours; they are escaped nevertheless */

static ngx_chain_t *
ngx_http_idem_problem_body(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    const struct idem__problem_type *type, const char *detail, ngx_str_t *base,
    ngx_str_t *url)
{
    u_char     *p, *last;
    size_t      len;
    ngx_str_t   key, instance;

    ngx_str_null(&key);

    if (ctx && !ctx->by_content) {
        key = ctx->id;
    }

    if (ngx_http_idem_instance(r, &instance) != NGX_OK) {
        return NULL;
    }

    len = base->len + ngx_strlen(type->name) + ngx_strlen(type->title)
          + 2 * ngx_strlen(detail) + url->len + instance.len + 6 * key.len
          + 256;

    p = ngx_pnalloc(r->pool, len);
    if (p == NULL) {
        return NULL;
    }

    last = ngx_sprintf(p, "{\"type\":\"%V%s\",\"title\":\"%s\",\"status\":%ui,"
                          "\"detail\":\"", base, type->name, type->title,
                       r->headers_out.status);

    last = (u_char *) ngx_escape_json(last, (u_char *) detail,
                                      ngx_strlen(detail));

    last = ngx_sprintf(last, "\",\"retryable\":%s,\"class\":\"%s\","
                             "\"documentation\":\"%V\",\"instance\":\"%V\"",
                       type->retryable ? "true" : "false",
                       idem__class_name(type->class), url, &instance);

    if (key.len) {
        last = ngx_sprintf(last, ",\"idempotency_key\":\"");
        last = (u_char *) ngx_escape_json(last, key.data, key.len);
        *last++ = '"';
    }

    last = ngx_sprintf(last, "}\n");

    r->headers_out.content_length_n = last - p;

    return ngx_http_idem_body(r, p, last);
}


/* the problem's status, or the one that the profile's API uses */

static ngx_uint_t
ngx_http_idem_problem_status(const ngx_http_idem_problem_t *problem,
    ngx_http_idem_loc_conf_t *conf)
{
    if (problem->type == IDEM_PROBLEM_MISMATCH) {
        return gateway_profiles[conf->profile].mismatch;
    }

    return problem->status ? problem->status
                           : idem__problem_type(problem->type)->status;
}


ngx_chain_t *
ngx_http_idem_problem_answer(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, const ngx_http_idem_problem_t *problem,
    ngx_uint_t status, const char *detail, ngx_uint_t retry_after)
{
    u_char                            limit[256];
    ngx_str_t                         url;
    ngx_http_idem_ctx_t              *ctx;
    ngx_http_idem_main_conf_t        *mcf;
    const struct idem__problem_type  *type;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idem_module);
    type = idem__problem_type(problem->type);

    if (problem == &ngx_http_idem_body_too_large && detail == NULL) {
        (void) ngx_snprintf(limit, sizeof(limit),
                            "The body is over %uz bytes, the limit for "
                            "requests with an idempotency key: send a smaller "
                            "one, or have the limit raised (--max-body).%Z",
                            conf->max_body);
        detail = (char *) limit;
    }

    if (status == 0) {
        status = ngx_http_idem_problem_status(problem, conf);
    }

    ngx_http_clean_header(r);
    r->headers_out.status = status;
    r->err_status = 0;

    /* nginx has no reason phrase for this one */

    if (status == 422) {
        ngx_str_set(&r->headers_out.status_line, "422 Unprocessable Content");
    }

    ngx_str_set(&r->headers_out.content_type, "application/problem+json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx) {
        ctx->result_told = 0;   /* it was for a response that is not sent */
    }

    if ((ctx && ngx_http_idem_add_result(ctx, type->class
                                              != IDEM_CLASS_NOT_EXECUTED)
                != NGX_OK)
        || ngx_http_idem_problem_url(r, conf, &mcf->problem_base, type->name,
                                     &url) != NGX_OK
        || ngx_http_idem_problem_headers(r, &url, retry_after) != NGX_OK)
    {
        return NULL;
    }

    return ngx_http_idem_problem_body(r, ctx, type,
                                      detail ? detail : problem->detail,
                                      &mcf->problem_base, &url);
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
