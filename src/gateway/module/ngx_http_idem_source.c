
/*
 * ngx_http_idem_source.c - the directives that set the source of a key, a token
 * or a scope.
 */


#include "ngx_http_idem.h"


/* a plain header variable is looked up here, so that a repeated header is
 * noticed; NGX_DECLINED: the text is something else */

static ngx_int_t
ngx_http_idem_header_source(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_idem_source_t *source)
{
    u_char      c, *p;
    ngx_uint_t  i;

    if (text->len <= 6 || ngx_strncmp(text->data, "$http_", 6) != 0) {
        return NGX_DECLINED;
    }

    p = ngx_pnalloc(cf->pool, text->len - 6);
    if (p == NULL) {
        return NGX_ERROR;
    }

    for (i = 6; i < text->len; i++) {
        c = text->data[i];

        if (!((c >= 'a' && c <= 'z') || c == '_' || (c >= '0' && c <= '9'))) {
            return NGX_DECLINED;
        }

        p[i - 6] = c == '_' ? '-' : c;
    }

    source->from = NGX_HTTP_IDEM_FROM_HEADER;
    source->name.data = p;
    source->name.len = text->len - 6;

    return NGX_OK;
}


/* see source.h */

static char *
ngx_http_idem_source(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_idem_source_t *source, enum gateway_source_use use)
{
    char                              flaw[GATEWAY_SOURCE_FLAW_MAX];
    ngx_int_t                         rc;
    struct idem_bytes                 all, rest;
    ngx_http_compile_complex_value_t  ccv;

    static const ngx_http_idem_from_e  from[] = {
        [GATEWAY_SOURCE_VARIABLE] = NGX_HTTP_IDEM_FROM_VARIABLE,
        [GATEWAY_SOURCE_JSON] = NGX_HTTP_IDEM_FROM_JSON,
        [GATEWAY_SOURCE_FORM] = NGX_HTTP_IDEM_FROM_FORM,
        [GATEWAY_SOURCE_XML] = NGX_HTTP_IDEM_FROM_XML,
        [GATEWAY_SOURCE_CONST] = NGX_HTTP_IDEM_FROM_CONST,
        [GATEWAY_SOURCE_CONTENT] = NGX_HTTP_IDEM_FROM_CONTENT
    };

    ngx_memzero(source, sizeof(ngx_http_idem_source_t));

    all.data = text->data;
    all.len = text->len;

    if (!gateway_source_check(all, use, flaw)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s", flaw);
        return NGX_CONF_ERROR;
    }

    source->from = from[gateway_source_kind(all, &rest)];

    if (source->from != NGX_HTTP_IDEM_FROM_VARIABLE) {
        source->name.data = (u_char *) rest.data;
        source->name.len = rest.len;
        return NGX_CONF_OK;
    }

    rc = ngx_http_idem_header_source(cf, text, source);

    if (rc != NGX_DECLINED) {
        return rc == NGX_OK ? NGX_CONF_OK : NGX_CONF_ERROR;
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


ngx_array_t *
ngx_http_idem_source_list(ngx_conf_t *cf, ngx_str_t *texts, ngx_uint_t n,
    enum gateway_source_use use)
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
            || ngx_http_idem_source(cf, &texts[i], source, use)
               != NGX_CONF_OK)
        {
            return NULL;
        }
    }

    return list;
}


ngx_array_t *
ngx_http_idem_source_words(ngx_conf_t *cf, const char *text)
{
    u_char      *p, *end, *last;
    ngx_str_t    words[2];
    ngx_uint_t   n;

    p = (u_char *) text;
    last = p + ngx_strlen(text);

    for (n = 0; p < last && n < 2; n++) {
        end = ngx_strlchr(p, last, ' ');
        words[n].data = p;
        words[n].len = (end ? end : last) - p;
        p += words[n].len + 1;
    }

    return ngx_http_idem_source_list(cf, words, n, GATEWAY_FOR_KEY);
}


char *
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

    *list = ngx_http_idem_source_list(cf, &value[1], cf->args->nelts - 1,
                                      cmd->offset
                                      == offsetof(ngx_http_idem_loc_conf_t,
                                                  keys)
                                      ? GATEWAY_FOR_KEY : GATEWAY_FOR_TOKEN);

    return *list ? NGX_CONF_OK : NGX_CONF_ERROR;
}


char *
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

    return ngx_http_idem_source(cf, &value[1], ilcf->scope,
                                GATEWAY_FOR_SCOPE);
}


ngx_uint_t
ngx_http_idem_reads_body(ngx_http_idem_source_t *source)
{
    return source->from == NGX_HTTP_IDEM_FROM_JSON
           || source->from == NGX_HTTP_IDEM_FROM_FORM
           || source->from == NGX_HTTP_IDEM_FROM_XML
           || source->from == NGX_HTTP_IDEM_FROM_CONTENT;
}


ngx_uint_t
ngx_http_idem_is_content(ngx_http_idem_source_t *source)
{
    return source->from == NGX_HTTP_IDEM_FROM_CONTENT;
}


/* is the test true for one source of the list? */

ngx_uint_t
ngx_http_idem_any_source(ngx_array_t *list,
    ngx_uint_t (*test)(ngx_http_idem_source_t *source))
{
    ngx_uint_t               i;
    ngx_http_idem_source_t  *source;

    if (list == NULL) {
        return 0;
    }

    source = list->elts;

    for (i = 0; i < list->nelts; i++) {
        if (test(&source[i])) {
            return 1;
        }
    }

    return 0;
}
