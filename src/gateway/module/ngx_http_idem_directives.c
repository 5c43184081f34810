
/*
 * ngx_http_idem_directives.c - the table of directives, and the parsing of
 * their values.
 */


#include "ngx_http_idem.h"


static char *ngx_http_idem_engine_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_idem_names(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_idem_header_names(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_idem_statuses(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_idem_duplicate_directive(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_idem_fingerprint_directive(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_idem_status_directive(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_idem_issue_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


static char *
ngx_http_idem_problem_base_check(ngx_conf_t *cf, void *post, void *data)
{
    ngx_str_t  *base = data;

    return problem_base_ok((struct idem_bytes) { base->data, base->len })
           ? NGX_CONF_OK : "needs a URL that ends with / or #";
}


static ngx_conf_post_t  ngx_http_idem_problem_base_post = {
    ngx_http_idem_problem_base_check
};


static ngx_conf_enum_t  ngx_http_idem_modes[] = {
    { ngx_string("strict"), NGX_HTTP_IDEM_STRICT },
    { ngx_string("loose"), NGX_HTTP_IDEM_LOOSE },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_idem_profiles[] = {
    { ngx_string("ietf"), GATEWAY_IETF },
    { ngx_string("stripe"), GATEWAY_STRIPE },
    { ngx_string("oasis"), GATEWAY_OASIS },
    { ngx_string("paypal"), GATEWAY_PAYPAL },
    { ngx_null_string, 0 }
};


static ngx_conf_bitmask_t  ngx_http_idem_methods[] = {
    { ngx_string("GET"), NGX_HTTP_GET },
    { ngx_string("HEAD"), NGX_HTTP_HEAD },
    { ngx_string("POST"), NGX_HTTP_POST },
    { ngx_string("PUT"), NGX_HTTP_PUT },
    { ngx_string("DELETE"), NGX_HTTP_DELETE },
    { ngx_string("MKCOL"), NGX_HTTP_MKCOL },
    { ngx_string("COPY"), NGX_HTTP_COPY },
    { ngx_string("MOVE"), NGX_HTTP_MOVE },
    { ngx_string("OPTIONS"), NGX_HTTP_OPTIONS },
    { ngx_string("PROPFIND"), NGX_HTTP_PROPFIND },
    { ngx_string("PROPPATCH"), NGX_HTTP_PROPPATCH },
    { ngx_string("LOCK"), NGX_HTTP_LOCK },
    { ngx_string("UNLOCK"), NGX_HTTP_UNLOCK },
    { ngx_string("PATCH"), NGX_HTTP_PATCH },
    { ngx_null_string, 0 }
};


#define NGX_HTTP_IDEM_ANYWHERE                                                \
    NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF

#define ngx_http_idem_loc(name, args, set, field, post)                       \
    { ngx_string(name), NGX_HTTP_IDEM_ANYWHERE|args, set,                     \
      NGX_HTTP_LOC_CONF_OFFSET, offsetof(ngx_http_idem_loc_conf_t, field),    \
      post }


ngx_command_t  ngx_http_idem_commands[] = {

    /* idem_engine unix:/path | host:port [user=...] [password=...] ... */

    { ngx_string("idem_engine"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_1MORE,
      ngx_http_idem_engine_directive,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idem_problem_base"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_str_slot,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(ngx_http_idem_main_conf_t, problem_base),
      &ngx_http_idem_problem_base_post },

    { ngx_string("idem_figures"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_http_idem_figures_directive,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idem_end_with_master"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_MAIN_CONF_OFFSET,
      offsetof(ngx_http_idem_main_conf_t, end_with_master),
      NULL },

    ngx_http_idem_loc("idem", NGX_CONF_FLAG, ngx_conf_set_flag_slot, enable,
                      NULL),
    ngx_http_idem_loc("idem_key", NGX_CONF_1MORE, ngx_http_idem_sources, keys,
                      NULL),
    ngx_http_idem_loc("idem_token", NGX_CONF_1MORE, ngx_http_idem_sources,
                      tokens, NULL),
    ngx_http_idem_loc("idem_scope", NGX_CONF_TAKE1,
                      ngx_http_idem_scope_directive, scope, NULL),
    ngx_http_idem_loc("idem_credential", NGX_CONF_1MORE, ngx_http_idem_names,
                      credentials, NULL),
    ngx_http_idem_loc("idem_anonymous", NGX_CONF_FLAG, ngx_conf_set_flag_slot,
                      anonymous, NULL),
    ngx_http_idem_loc("idem_key_quoted", NGX_CONF_FLAG, ngx_conf_set_flag_slot,
                      key_quoted, NULL),
    ngx_http_idem_loc("idem_profile", NGX_CONF_TAKE1, ngx_conf_set_enum_slot,
                      profile, &ngx_http_idem_profiles),
    ngx_http_idem_loc("idem_replayed_header", NGX_CONF_1MORE,
                      ngx_http_idem_header_names, replayed, NULL),
    ngx_http_idem_loc("idem_methods", NGX_CONF_1MORE,
                      ngx_conf_set_bitmask_slot, methods,
                      &ngx_http_idem_methods),
    ngx_http_idem_loc("idem_required", NGX_CONF_FLAG, ngx_conf_set_flag_slot,
                      required, NULL),
    ngx_http_idem_loc("idem_mode", NGX_CONF_TAKE1, ngx_conf_set_enum_slot,
                      mode, &ngx_http_idem_modes),
    ngx_http_idem_loc("idem_wait", NGX_CONF_TAKE1, ngx_conf_set_msec_slot,
                      wait, NULL),
    ngx_http_idem_loc("idem_lease", NGX_CONF_TAKE1, ngx_conf_set_msec_slot,
                      lease, NULL),
    ngx_http_idem_loc("idem_ttl", NGX_CONF_TAKE1, ngx_conf_set_msec_slot, ttl,
                      NULL),
    ngx_http_idem_loc("idem_dedupe_content", NGX_CONF_TAKE1,
                      ngx_conf_set_msec_slot, dedupe, NULL),
    ngx_http_idem_loc("idem_max_body", NGX_CONF_TAKE1, ngx_conf_set_size_slot,
                      max_body, NULL),
    ngx_http_idem_loc("idem_max_answer", NGX_CONF_TAKE1,
                      ngx_conf_set_size_slot, max_answer, NULL),
    ngx_http_idem_loc("idem_next_token", NGX_CONF_FLAG,
                      ngx_conf_set_flag_slot, next_token, NULL),
    ngx_http_idem_loc("idem_page_token", NGX_CONF_FLAG,
                      ngx_conf_set_flag_slot, page_token, NULL),
    ngx_http_idem_loc("idem_inject_token", NGX_CONF_TAKE1,
                      ngx_http_idem_inject_directive, inject, NULL),
    ngx_http_idem_loc("idem_close_delimited", NGX_CONF_FLAG,
                      ngx_conf_set_flag_slot, close_delimited, NULL),
    ngx_http_idem_loc("idem_release", NGX_CONF_1MORE, ngx_http_idem_statuses,
                      release, NULL),
    ngx_http_idem_loc("idem_keep_header", NGX_CONF_1MORE, ngx_http_idem_names,
                      keep, NULL),
    ngx_http_idem_loc("idem_drop_header", NGX_CONF_1MORE, ngx_http_idem_names,
                      drop, NULL),
    ngx_http_idem_loc("idem_fail_open", NGX_CONF_FLAG, ngx_conf_set_flag_slot,
                      fail_open, NULL),
    ngx_http_idem_loc("idem_duplicate", NGX_CONF_TAKE13,
                      ngx_http_idem_duplicate_directive, duplicate, NULL),
    ngx_http_idem_loc("idem_fingerprint", NGX_CONF_1MORE,
                      ngx_http_idem_fingerprint_directive, fingerprint, NULL),
    ngx_http_idem_loc("idem_docs", NGX_CONF_TAKE1, ngx_conf_set_str_slot, docs,
                      NULL),
    ngx_http_idem_loc("idem_unbuffer_events", NGX_CONF_FLAG,
                      ngx_conf_set_flag_slot, unbuffer_events, NULL),
    ngx_http_idem_loc("idem_token_ttl", NGX_CONF_TAKE1, ngx_conf_set_msec_slot,
                      token_ttl, NULL),

    { ngx_string("idem_status"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_idem_status_directive,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idem_issue_token"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_idem_issue_directive,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


/* the value behind "name=", which ends in NUL as every word of the file does */

static ngx_int_t
ngx_http_idem_engine_text(ngx_str_t *value, const char *name, ngx_str_t *text)
{
    size_t  len;

    len = ngx_strlen(name);

    if (value->len < len || ngx_strncmp(value->data, name, len) != 0) {
        return NGX_DECLINED;
    }

    text->data = value->data + len;
    text->len = value->len - len;

    return NGX_OK;
}


/* user=, password=, timeout=, away=, max_buffered=, tls=, ca=, cert=, ... */

static ngx_int_t
ngx_http_idem_engine_parameter(ngx_http_idem_engine_t *e, ngx_str_t *value)
{
    ngx_str_t  s;

    if (ngx_http_idem_engine_text(value, "user=", &e->user) == NGX_OK
        || ngx_http_idem_engine_text(value, "password=", &e->password) == NGX_OK
        || ngx_http_idem_engine_text(value, "ca=", &e->ca) == NGX_OK
        || ngx_http_idem_engine_text(value, "cert=", &e->cert) == NGX_OK
        || ngx_http_idem_engine_text(value, "key=", &e->key) == NGX_OK
        || ngx_http_idem_engine_text(value, "name=", &e->host) == NGX_OK)
    {
        return NGX_OK;
    }

    if (ngx_http_idem_engine_text(value, "tls=", &s) == NGX_OK) {
        e->tls = s.len == 2 && ngx_strncmp(s.data, "on", 2) == 0;

        return e->tls || (s.len == 3 && ngx_strncmp(s.data, "off", 3) == 0)
               ? NGX_OK : NGX_ERROR;
    }

    if (ngx_strncmp(value->data, "timeout=", 8) == 0) {
        s.data = value->data + 8;
        s.len = value->len - 8;
        e->timeout = ngx_parse_time(&s, 0);

        return e->timeout != (ngx_msec_t) NGX_ERROR && e->timeout ? NGX_OK
                                                                  : NGX_ERROR;
    }

    if (ngx_strncmp(value->data, "away=", 5) == 0) {
        s.data = value->data + 5;
        s.len = value->len - 5;
        e->patience = ngx_parse_time(&s, 0);

        return e->patience != (ngx_msec_t) NGX_ERROR ? NGX_OK : NGX_ERROR;
    }

    if (ngx_strncmp(value->data, "max_buffered=", 13) == 0) {
        s.data = value->data + 13;
        s.len = value->len - 13;
        e->max_buffered = ngx_parse_size(&s);

        return e->max_buffered != (size_t) NGX_ERROR ? NGX_OK : NGX_ERROR;
    }

    return NGX_ERROR;
}


/* the host of the address, for TLS; an IPv6 address without its brackets */

static ngx_int_t
ngx_http_idem_engine_host(ngx_conf_t *cf, ngx_http_idem_engine_t *e,
    ngx_url_t *u)
{
    if (u->host.len > 2 && u->host.data[0] == '[') {
        u->host.data++;
        u->host.len -= 2;
    }

    e->host.len = u->host.len;
    e->host.data = ngx_pnalloc(cf->pool, u->host.len + 1);
    if (e->host.data == NULL) {
        return NGX_ERROR;
    }

    ngx_cpystrn(e->host.data, u->host.data, u->host.len + 1);

    return NGX_OK;
}


static char *
ngx_http_idem_engine_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_main_conf_t  *mcf = conf;

    ngx_str_t               *value;
    ngx_url_t                u;
    ngx_uint_t               i;
    ngx_http_idem_engine_t  *e;

    if (mcf->engine) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ngx_memzero(&u, sizeof(ngx_url_t));
    u.url = value[1];
    u.default_port = 6390;

    if (ngx_parse_url(cf->pool, &u) != NGX_OK || u.naddrs == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s in engine \"%V\"",
                           u.err ? u.err : "no address", &u.url);
        return NGX_CONF_ERROR;
    }

    e = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_engine_t));
    if (e == NULL) {
        return NGX_CONF_ERROR;
    }

    e->addr = u.addrs[0];
    e->name = value[1];
    e->timeout = 5000;
    e->patience = 1000;
    e->max_buffered = 64 * 1024 * 1024;

    for (i = 2; i < cf->args->nelts; i++) {
        if (ngx_http_idem_engine_parameter(e, &value[i]) != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\"", &value[i]);
            return NGX_CONF_ERROR;
        }
    }

    if (e->user.len && e->password.len == 0) {
        return "has user= without password=";
    }

    if (ngx_http_idem_tls_create(cf, e) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (e->host.len == 0 && ngx_http_idem_engine_host(cf, e, &u) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    mcf->engine = e;

    return NGX_CONF_OK;
}


/* header names, with their case */

static char *
ngx_http_idem_header_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t          *value, *s;
    ngx_uint_t          i;
    ngx_array_t       **list;
    struct idem_bytes   name;

    list = (ngx_array_t **) ((char *) conf + cmd->offset);

    if (*list != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    *list = ngx_array_create(cf->pool, 4, sizeof(ngx_str_t));
    if (*list == NULL) {
        return NGX_CONF_ERROR;
    }

    for (i = 1; i < cf->args->nelts; i++) {
        name.data = value[i].data;
        name.len = value[i].len;

        if (!gateway_header_name_ok(name)) {
            return "has a value that is not the name of a header";
        }

        s = ngx_array_push(*list);
        if (s == NULL) {
            return NGX_CONF_ERROR;
        }

        *s = value[i];
    }

    return NGX_CONF_OK;
}


/* names for comparison, in lower case */

static char *
ngx_http_idem_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t   *value;
    ngx_uint_t   i;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        ngx_strlow(value[i].data, value[i].data, value[i].len);
    }

    return ngx_http_idem_header_names(cf, cmd, conf);
}


/* 425 429 500-599; off: no status releases the claim */

static char *
ngx_http_idem_statuses(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    u_char                 *dash;
    ngx_int_t               first, last;
    ngx_str_t              *value;
    ngx_uint_t              i;
    ngx_http_idem_range_t  *range;

    if (ilcf->release != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ilcf->release = ngx_array_create(cf->pool, 4,
                                     sizeof(ngx_http_idem_range_t));
    if (ilcf->release == NULL) {
        return NGX_CONF_ERROR;
    }

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        return NGX_CONF_OK;
    }

    for (i = 1; i < cf->args->nelts; i++) {
        dash = ngx_strlchr(value[i].data, value[i].data + value[i].len, '-');

        first = ngx_atoi(value[i].data, dash ? (size_t) (dash - value[i].data)
                                             : value[i].len);
        last = dash ? ngx_atoi(dash + 1, value[i].data + value[i].len
                                         - dash - 1)
                    : first;

        if (first < 200 || last > 599 || first > last) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "invalid status \"%V\"",
                               &value[i]);
            return NGX_CONF_ERROR;
        }

        range = ngx_array_push(ilcf->release);
        if (range == NULL) {
            return NGX_CONF_ERROR;
        }

        range->first = first;
        range->last = last;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_duplicate_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_int_t   status;
    ngx_str_t  *value;

    if (ilcf->duplicate != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2) {

        if (ngx_strcmp(value[1].data, "replay") == 0) {
            ilcf->duplicate = NGX_HTTP_IDEM_REPLAY;
            return NGX_CONF_OK;
        }

        if (ngx_strcmp(value[1].data, "refuse") == 0) {
            ilcf->duplicate = NGX_HTTP_IDEM_REFUSE;
            return NGX_CONF_OK;
        }

        return "is neither \"replay\", \"refuse\" nor \"answer STATUS TEXT\"";
    }

    status = ngx_atoi(value[2].data, value[2].len);

    if (ngx_strcmp(value[1].data, "answer") != 0 || status < 200
        || status > 599)
    {
        return "is neither \"replay\", \"refuse\" nor \"answer STATUS TEXT\"";
    }

    ilcf->duplicate = NGX_HTTP_IDEM_FIXED;
    ilcf->duplicate_status = status;
    ilcf->duplicate_text = value[3];

    return NGX_CONF_OK;
}


/* body | json | json path... | off */

static char *
ngx_http_idem_fingerprint_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t   *value, *s;
    ngx_uint_t   i;

    if (ilcf->fingerprint != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "body") == 0) {
        ilcf->fingerprint = NGX_HTTP_IDEM_FP_BODY;
        return NGX_CONF_OK;
    }

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        ilcf->fingerprint = NGX_HTTP_IDEM_FP_OFF;
        return NGX_CONF_OK;
    }

    if (ngx_strcmp(value[1].data, "json") != 0) {
        return "is neither \"body\", \"json [path ...]\" nor \"off\"";
    }

    ilcf->fingerprint = NGX_HTTP_IDEM_FP_JSON;

    if (cf->args->nelts == 2) {
        return NGX_CONF_OK;
    }

    ilcf->fields = ngx_array_create(cf->pool, 4, sizeof(ngx_str_t));
    if (ilcf->fields == NULL) {
        return NGX_CONF_ERROR;
    }

    for (i = 2; i < cf->args->nelts; i++) {
        s = ngx_array_push(ilcf->fields);
        if (s == NULL) {
            return NGX_CONF_ERROR;
        }

        *s = value[i];
    }

    return NGX_CONF_OK;
}


/* a location whose responses come from this module */

static void
ngx_http_idem_answers(ngx_conf_t *cf, ngx_http_handler_pt handler)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = handler;
}


static char *
ngx_http_idem_issue_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_http_idem_answers(cf, ngx_http_idem_token_handler);
    ilcf->issues = 1;

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_status_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_http_idem_answers(cf, ngx_http_idem_status_handler);
    ilcf->tells = 1;

    return NGX_CONF_OK;
}
