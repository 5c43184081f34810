
/*
 * ngx_http_idem_conf.c - the directives, and what they refuse.
 *
 * A location that is gated must never send a request twice, and must see its
 * execution through when the client leaves; a configuration that would do
 * otherwise is an error at start, not a surprise at night.
 */


#include "ngx_http_idem.h"

#include "source.h"


static char *ngx_http_idem_engine_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_idem_sources(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_idem_scope_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_idem_names(ngx_conf_t *cf, ngx_command_t *cmd,
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


static ngx_conf_enum_t  ngx_http_idem_modes[] = {
    { ngx_string("strict"), NGX_HTTP_IDEM_STRICT },
    { ngx_string("loose"), NGX_HTTP_IDEM_LOOSE },
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

    /* idem_engine unix:/path | host:port [password=...] [timeout=...] */

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
    ngx_http_idem_loc("idem_max_body", NGX_CONF_TAKE1, ngx_conf_set_size_slot,
                      max_body, NULL),
    ngx_http_idem_loc("idem_max_answer", NGX_CONF_TAKE1,
                      ngx_conf_set_size_slot, max_answer, NULL),
    ngx_http_idem_loc("idem_next_token", NGX_CONF_FLAG,
                      ngx_conf_set_flag_slot, next_token, NULL),
    ngx_http_idem_loc("idem_page_token", NGX_CONF_FLAG,
                      ngx_conf_set_flag_slot, page_token, NULL),
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


static char *
ngx_http_idem_engine_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_main_conf_t  *mcf = conf;

    ngx_str_t               *value, s;
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
    e->max_buffered = 64 * 1024 * 1024;

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "password=", 9) == 0) {
            e->password.data = value[i].data + 9;
            e->password.len = value[i].len - 9;
            continue;
        }

        if (ngx_strncmp(value[i].data, "timeout=", 8) == 0) {
            s.data = value[i].data + 8;
            s.len = value[i].len - 8;
            e->timeout = ngx_parse_time(&s, 0);

            if (e->timeout != (ngx_msec_t) NGX_ERROR && e->timeout) {
                continue;
            }
        }

        if (ngx_strncmp(value[i].data, "max_buffered=", 13) == 0) {
            s.data = value[i].data + 13;
            s.len = value[i].len - 13;
            e->max_buffered = ngx_parse_size(&s);

            if (e->max_buffered != (size_t) NGX_ERROR) {
                continue;
            }
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "invalid parameter \"%V\"",
                           &value[i]);
        return NGX_CONF_ERROR;
    }

    mcf->engine = e;

    return NGX_CONF_OK;
}


/* see source.h */

static char *
ngx_http_idem_source(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_idem_source_t *source, ngx_uint_t scope)
{
    char                              flaw[GATEWAY_SOURCE_FLAW_MAX];
    u_char                           *p;
    ngx_uint_t                        i;
    struct idem_bytes                 all, rest;
    ngx_http_compile_complex_value_t  ccv;

    static const ngx_http_idem_from_e  from[] = {
        [GATEWAY_SOURCE_VARIABLE] = NGX_HTTP_IDEM_FROM_VARIABLE,
        [GATEWAY_SOURCE_JSON] = NGX_HTTP_IDEM_FROM_JSON,
        [GATEWAY_SOURCE_FORM] = NGX_HTTP_IDEM_FROM_FORM,
        [GATEWAY_SOURCE_XML] = NGX_HTTP_IDEM_FROM_XML,
        [GATEWAY_SOURCE_CONST] = NGX_HTTP_IDEM_FROM_CONST
    };

    ngx_memzero(source, sizeof(ngx_http_idem_source_t));

    all.data = text->data;
    all.len = text->len;

    if (!gateway_source_check(all, scope, flaw)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s", flaw);
        return NGX_CONF_ERROR;
    }

    source->from = from[gateway_source_kind(all, &rest)];

    if (source->from != NGX_HTTP_IDEM_FROM_VARIABLE) {
        source->name.data = (u_char *) rest.data;
        source->name.len = rest.len;
        return NGX_CONF_OK;
    }

    /* a header by itself is looked up here, so that two of them are seen */

    if (text->len > 6 && ngx_strncmp(text->data, "$http_", 6) == 0) {
        p = text->data + 6;

        for (i = 6; i < text->len; i++) {
            if (!((*p >= 'a' && *p <= 'z') || *p == '_'
                  || (*p >= '0' && *p <= '9')))
            {
                break;
            }

            p++;
        }

        if (i == text->len) {
            source->from = NGX_HTTP_IDEM_FROM_HEADER;
            source->name.len = text->len - 6;
            source->name.data = ngx_pnalloc(cf->pool, source->name.len);
            if (source->name.data == NULL) {
                return NGX_CONF_ERROR;
            }

            for (i = 0; i < source->name.len; i++) {
                source->name.data[i] = text->data[6 + i] == '_'
                                       ? '-' : text->data[6 + i];
            }

            return NGX_CONF_OK;
        }
    }

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = text;
    ccv.complex_value = &source->value;

    if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static ngx_array_t *
ngx_http_idem_source_list(ngx_conf_t *cf, ngx_str_t *texts, ngx_uint_t n)
{
    ngx_uint_t               i;
    ngx_array_t             *list;
    ngx_http_idem_source_t  *source;

    list = ngx_array_create(cf->pool, n, sizeof(ngx_http_idem_source_t));
    if (list == NULL) {
        return NULL;
    }

    for (i = 0; i < n; i++) {
        source = ngx_array_push(list);

        if (source == NULL
            || ngx_http_idem_source(cf, &texts[i], source, 0)
               != NGX_CONF_OK)
        {
            return NULL;
        }
    }

    return list;
}


static char *
ngx_http_idem_sources(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t     *value;
    ngx_array_t  **list;

    list = (ngx_array_t **) ((char *) conf + cmd->offset);

    if (*list != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        *list = NULL;
        return NGX_CONF_OK;
    }

    *list = ngx_http_idem_source_list(cf, &value[1], cf->args->nelts - 1);

    return *list ? NGX_CONF_OK : NGX_CONF_ERROR;
}


static char *
ngx_http_idem_scope_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t  *value;

    if (ilcf->scope) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ilcf->scope = ngx_palloc(cf->pool, sizeof(ngx_http_idem_source_t));
    if (ilcf->scope == NULL) {
        return NGX_CONF_ERROR;
    }

    return ngx_http_idem_source(cf, &value[1], ilcf->scope, 1);
}


static char *
ngx_http_idem_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t     *value, *s;
    ngx_uint_t     i;
    ngx_array_t  **list;

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
        s = ngx_array_push(*list);
        if (s == NULL) {
            return NGX_CONF_ERROR;
        }

        ngx_strlow(value[i].data, value[i].data, value[i].len);
        *s = value[i];
    }

    return NGX_CONF_OK;
}


/* 425 429 500-599; off: no status releases */

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


static char *
ngx_http_idem_issue_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_idem_token_handler;

    ilcf->issues = 1;

    return NGX_CONF_OK;
}


void *
ngx_http_idem_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_main_conf_t));

    if (mcf) {
        mcf->end_with_master = NGX_CONF_UNSET_MSEC;
    }

    return mcf;
}


char *
ngx_http_idem_init_main_conf(ngx_conf_t *cf, void *conf)
{
    ngx_http_idem_main_conf_t  *mcf = conf;

    ngx_conf_init_msec_value(mcf->end_with_master, 0);

    if (mcf->problem_base.len == 0) {
        ngx_str_set(&mcf->problem_base, "https://idem.example/problems/");
    }

    return NGX_CONF_OK;
}


void *
ngx_http_idem_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_idem_loc_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->enable = NGX_CONF_UNSET;
    conf->keys = NGX_CONF_UNSET_PTR;
    conf->tokens = NGX_CONF_UNSET_PTR;
    conf->credentials = NGX_CONF_UNSET_PTR;
    conf->anonymous = NGX_CONF_UNSET;
    conf->key_quoted = NGX_CONF_UNSET;
    conf->required = NGX_CONF_UNSET;
    conf->mode = NGX_CONF_UNSET_UINT;
    conf->wait = NGX_CONF_UNSET_MSEC;
    conf->lease = NGX_CONF_UNSET_MSEC;
    conf->ttl = NGX_CONF_UNSET_MSEC;
    conf->max_body = NGX_CONF_UNSET_SIZE;
    conf->max_answer = NGX_CONF_UNSET_SIZE;
    conf->close_delimited = NGX_CONF_UNSET;
    conf->next_token = NGX_CONF_UNSET;
    conf->page_token = NGX_CONF_UNSET;
    conf->release = NGX_CONF_UNSET_PTR;
    conf->keep = NGX_CONF_UNSET_PTR;
    conf->drop = NGX_CONF_UNSET_PTR;
    conf->fail_open = NGX_CONF_UNSET;
    conf->duplicate = NGX_CONF_UNSET_UINT;
    conf->fingerprint = NGX_CONF_UNSET_UINT;
    conf->unbuffer_events = NGX_CONF_UNSET;
    conf->token_ttl = NGX_CONF_UNSET_MSEC;

    return conf;
}


static ngx_uint_t
ngx_http_idem_reads_body(ngx_http_idem_source_t *source, ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 0; i < n; i++) {
        if (source[i].from == NGX_HTTP_IDEM_FROM_JSON
            || source[i].from == NGX_HTTP_IDEM_FROM_FORM
            || source[i].from == NGX_HTTP_IDEM_FROM_XML)
        {
            return 1;
        }
    }

    return 0;
}


static ngx_uint_t
ngx_http_idem_list_reads_body(ngx_array_t *list)
{
    return list ? ngx_http_idem_reads_body(list->elts, list->nelts) : 0;
}


/* who has no scope of its own: told once, at start */

static void
ngx_http_idem_warn(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf,
    ngx_http_idem_main_conf_t *mcf)
{
    if (conf->scope && conf->scope->from == NGX_HTTP_IDEM_FROM_CONST) {
        return;
    }

    if (conf->anonymous == 1
        || (conf->anonymous == NGX_CONF_UNSET && conf->scope == NULL))
    {
        if (!mcf->warned_anonymous) {
            mcf->warned_anonymous = 1;

            ngx_conf_log_error(NGX_LOG_NOTICE, cf, 0,
                               "callers without a %s share the scope "
                               "\"anonymous\": they can get each other's "
                               "answers by using each other's keys; "
                               "\"idem_anonymous off\" refuses them",
                               conf->scope ? "scope" : "credential");
        }

        return;
    }

    if (conf->scope && conf->anonymous != 0 && !conf->required
        && !mcf->warned_scope)
    {
        mcf->warned_scope = 1;

        ngx_conf_log_error(NGX_LOG_NOTICE, cf, 0,
                           "requests without a scope (an empty "
                           "\"idem_scope\") pass as if they had no key: a "
                           "repeat runs again; \"idem_required on\" refuses "
                           "them");
    }
}


static ngx_array_t *
ngx_http_idem_default_credentials(ngx_conf_t *cf)
{
    ngx_str_t    *s;
    ngx_array_t  *list;

    list = ngx_array_create(cf->pool, 3, sizeof(ngx_str_t));
    if (list == NULL) {
        return NULL;
    }

    s = ngx_array_push_n(list, 3);
    if (s == NULL) {
        return NULL;
    }

    ngx_str_set(&s[0], "authorization");
    ngx_str_set(&s[1], "x-api-key");
    ngx_str_set(&s[2], "cookie");

    return list;
}


static void
ngx_http_idem_merge_values(ngx_http_idem_loc_conf_t *conf,
    ngx_http_idem_loc_conf_t *prev)
{
    ngx_conf_merge_value(conf->enable, prev->enable, 0);
    ngx_conf_merge_ptr_value(conf->tokens, prev->tokens, NULL);
    ngx_conf_merge_value(conf->next_token, prev->next_token, 0);
    ngx_conf_merge_value(conf->page_token, prev->page_token, 0);
    ngx_conf_merge_value(conf->close_delimited, prev->close_delimited, 0);
    ngx_conf_merge_ptr_value(conf->release, prev->release, NULL);
    ngx_conf_merge_ptr_value(conf->keep, prev->keep, NULL);
    ngx_conf_merge_ptr_value(conf->drop, prev->drop, NULL);
    ngx_conf_merge_value(conf->anonymous, prev->anonymous, NGX_CONF_UNSET);
    ngx_conf_merge_value(conf->key_quoted, prev->key_quoted, 0);
    ngx_conf_merge_bitmask_value(conf->methods, prev->methods,
                                 (NGX_CONF_BITMASK_SET|NGX_HTTP_POST
                                  |NGX_HTTP_PATCH));
    ngx_conf_merge_value(conf->required, prev->required, 0);
    ngx_conf_merge_uint_value(conf->mode, prev->mode, NGX_HTTP_IDEM_STRICT);
    ngx_conf_merge_msec_value(conf->wait, prev->wait, 0);
    ngx_conf_merge_msec_value(conf->lease, prev->lease,
                              IDEM_LEASE_DEFAULT_MS);
    ngx_conf_merge_msec_value(conf->ttl, prev->ttl, IDEM_TTL_DEFAULT_MS);
    ngx_conf_merge_size_value(conf->max_body, prev->max_body, 1024 * 1024);
    ngx_conf_merge_size_value(conf->max_answer, prev->max_answer,
                              IDEM_RESULT_DEFAULT_MAX);
    ngx_conf_merge_value(conf->fail_open, prev->fail_open, 0);
    ngx_conf_merge_str_value(conf->docs, prev->docs, "");
    ngx_conf_merge_value(conf->unbuffer_events, prev->unbuffer_events, 0);
    ngx_conf_merge_msec_value(conf->token_ttl, prev->token_ttl,
                              IDEM_TOKEN_TTL_DEFAULT_MS);
}


/* directives that set more than one thing */

static char *
ngx_http_idem_merge_groups(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf,
    ngx_http_idem_loc_conf_t *prev)
{
    static ngx_str_t  key = ngx_string("$http_idempotency_key");

    if (conf->scope == NULL) {
        conf->scope = prev->scope;
    }

    if (conf->duplicate == NGX_CONF_UNSET_UINT) {
        conf->duplicate = prev->duplicate;
        conf->duplicate_status = prev->duplicate_status;
        conf->duplicate_text = prev->duplicate_text;

        if (conf->duplicate == NGX_CONF_UNSET_UINT) {
            conf->duplicate = NGX_HTTP_IDEM_REPLAY;
        }
    }

    if (conf->fingerprint == NGX_CONF_UNSET_UINT) {
        conf->fingerprint = prev->fingerprint;
        conf->fields = prev->fields;

        if (conf->fingerprint == NGX_CONF_UNSET_UINT) {
            conf->fingerprint = NGX_HTTP_IDEM_FP_BODY;
        }
    }

    if (conf->credentials == NGX_CONF_UNSET_PTR) {
        conf->credentials = prev->credentials != NGX_CONF_UNSET_PTR
                            ? prev->credentials
                            : ngx_http_idem_default_credentials(cf);
        if (conf->credentials == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    if (conf->keys == NGX_CONF_UNSET_PTR) {
        conf->keys = prev->keys != NGX_CONF_UNSET_PTR
                     ? prev->keys : ngx_http_idem_source_list(cf, &key, 1);
    }

    conf->scope_needs_body = conf->scope
                             && ngx_http_idem_reads_body(conf->scope, 1);
    conf->needs_body = conf->scope_needs_body
                       || ngx_http_idem_list_reads_body(conf->keys)
                       || ngx_http_idem_list_reads_body(conf->tokens);

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_check_times(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf)
{
    ngx_uint_t  i;

    const struct {
        const char  *name;
        ngx_msec_t   value;
        int64_t      min;
        int64_t      max;
        const char  *range;
    } times[] = {
        { "idem_lease", conf->lease, 100, IDEM_LEASE_MAX_MS, "100ms to 7d" },
        { "idem_ttl", conf->ttl, 1, IDEM_TTL_MAX_MS, "1ms to 3660d" },
        { "idem_wait", conf->wait, 0, IDEM_WAIT_MAX_MS, "0 to 1h" },
        { "idem_token_ttl", conf->token_ttl, 1, IDEM_TTL_MAX_MS,
          "1ms to 3660d" },
    };

    for (i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        if ((int64_t) times[i].value < times[i].min
            || (int64_t) times[i].value > times[i].max)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%s\" of %Mms is out of range: give %s",
                               times[i].name, times[i].value, times[i].range);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


char *
ngx_http_idem_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_idem_loc_conf_t   *conf = child;
    ngx_http_idem_main_conf_t  *mcf;

    ngx_http_idem_merge_values(conf, parent);

    if (ngx_http_idem_merge_groups(cf, conf, parent) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    if (!conf->enable && !conf->issues && !conf->tells) {
        return NGX_CONF_OK;
    }

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idem_module);

    if (mcf->engine == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"idem on\" needs an \"idem_engine\"");
        return NGX_CONF_ERROR;
    }

    if (conf->fail_open && conf->mode == NGX_HTTP_IDEM_STRICT) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"idem_fail_open\" is for \"idem_mode loose\" "
                           "only: a strict request never runs unrecorded");
        return NGX_CONF_ERROR;
    }

    if (ngx_http_idem_check_times(cf, conf) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    ngx_http_idem_claim_prepare(conf);

    if (!conf->enable) {
        return NGX_CONF_OK;
    }

    ngx_http_idem_warn(cf, conf, mcf);

    return ngx_http_idem_check_content(cf, conf);
}


static char *
ngx_http_idem_status_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_idem_status_handler;

    ilcf->tells = 1;

    return NGX_CONF_OK;
}
