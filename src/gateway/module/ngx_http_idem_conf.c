
/*
 * ngx_http_idem_conf.c - the configuration of a location: its defaults, and
 * settings that are refused.
 *
 * A gated location must never send a request twice, and it must let the request
 * run to its end when the client disconnects.  nginx refuses to start with a
 * configuration that does not guarantee this.
 */


#include "ngx_http_idem.h"
#include "launched.h"
#include "times.h"


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
        ngx_str_set(&mcf->problem_base, IDEM_GATEWAY_PROBLEM_BASE);
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
    conf->profile = NGX_CONF_UNSET_UINT;
    conf->replayed = NGX_CONF_UNSET_PTR;
    conf->required = NGX_CONF_UNSET;
    conf->mode = NGX_CONF_UNSET_UINT;
    conf->wait = NGX_CONF_UNSET_MSEC;
    conf->lease = NGX_CONF_UNSET_MSEC;
    conf->ttl = NGX_CONF_UNSET_MSEC;
    conf->dedupe = NGX_CONF_UNSET_MSEC;
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


/*
 * warn once, at the start, about callers that share one scope; "idem gateway"
 * does this itself
 */

static void
ngx_http_idem_warn(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf,
    ngx_http_idem_main_conf_t *mcf)
{
    if (getenv(GATEWAY_LAUNCHED)
        || (conf->scope && conf->scope->from == NGX_HTTP_IDEM_FROM_CONST))
    {
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
                               "responses by using each other's keys; "
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
    ngx_conf_merge_uint_value(conf->profile, prev->profile, GATEWAY_IETF);
    ngx_conf_merge_ptr_value(conf->replayed, prev->replayed, NULL);
    ngx_conf_merge_bitmask_value(conf->methods, prev->methods,
                                 (NGX_CONF_BITMASK_SET|NGX_HTTP_POST
                                  |NGX_HTTP_PATCH));
    ngx_conf_merge_value(conf->required, prev->required, 0);
    ngx_conf_merge_uint_value(conf->mode, prev->mode, NGX_HTTP_IDEM_STRICT);
    ngx_conf_merge_msec_value(conf->wait, prev->wait, 0);
    ngx_conf_merge_msec_value(conf->lease, prev->lease,
                              IDEM_LEASE_DEFAULT_MS);
    ngx_conf_merge_msec_value(conf->ttl, prev->ttl, NGX_CONF_UNSET_MSEC);
    ngx_conf_merge_msec_value(conf->dedupe, prev->dedupe, 0);
    ngx_conf_merge_size_value(conf->max_body, prev->max_body, 1024 * 1024);
    ngx_conf_merge_size_value(conf->max_answer, prev->max_answer,
                              IDEM_RESULT_DEFAULT_MAX);
    ngx_conf_merge_value(conf->fail_open, prev->fail_open, 0);
    ngx_conf_merge_str_value(conf->docs, prev->docs, "");
    ngx_conf_merge_str_value(conf->inject, prev->inject, "");
    ngx_conf_merge_value(conf->unbuffer_events, prev->unbuffer_events, 0);
    ngx_conf_merge_msec_value(conf->token_ttl, prev->token_ttl,
                              IDEM_TOKEN_TTL_DEFAULT_MS);
}


/* directives that set more than one value */

static char *
ngx_http_idem_merge_groups(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf,
    ngx_http_idem_loc_conf_t *prev)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    /* nginx keeps a location's handler in its "if" */

    if (clcf->noname && !clcf->lmt_excpt && clcf->handler == NULL) {
        conf->issues = prev->issues;
        conf->tells = prev->tells;
    }

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
        conf->keys = prev->keys;
        conf->keys_default = prev->keys == NGX_CONF_UNSET_PTR
                             || prev->keys_default;
    }

    if (conf->keys_default) {
        conf->keys = ngx_http_idem_source_words(cf,
                                        gateway_profiles[conf->profile].keys);
        if (conf->keys == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    if (conf->inject.len && ngx_http_idem_inject_source(cf, conf) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    conf->scope_needs_body = conf->scope
                             && ngx_http_idem_reads_body(conf->scope);
    conf->needs_body = conf->scope_needs_body
                       || ngx_http_idem_any_source(conf->keys,
                                                   ngx_http_idem_reads_body)
                       || ngx_http_idem_any_source(conf->tokens,
                                                   ngx_http_idem_reads_body);

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_check_times(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf)
{
    ngx_uint_t  i;

    const ngx_msec_t  values[GATEWAY_TIMES] = {
        [GATEWAY_LEASE] = conf->lease,
        [GATEWAY_TTL] = conf->ttl == NGX_CONF_UNSET_MSEC
                        ? (ngx_msec_t) IDEM_TTL_DEFAULT_MS : conf->ttl,
        [GATEWAY_DEDUPE] = conf->dedupe,
        [GATEWAY_WAIT] = conf->wait,
        [GATEWAY_TOKEN_TTL] = conf->token_ttl,
    };

    for (i = 0; i < GATEWAY_TIMES; i++) {
        if ((int64_t) values[i] < gateway_times[i].min
            || (int64_t) values[i] > gateway_times[i].max)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%s\" of %Mms is out of range: give %s",
                               gateway_times[i].directive, values[i],
                               gateway_times[i].range);
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

    if (conf->ttl == NGX_CONF_UNSET_MSEC
        && ngx_http_idem_any_source(conf->keys, ngx_http_idem_is_content))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"idem_key content\" needs an \"idem_ttl\": how "
                           "long two equal requests are one, for instance "
                           "\"idem_ttl 10s\"");
        return NGX_CONF_ERROR;
    }

    if (ngx_http_idem_check_times(cf, conf) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    ngx_http_idem_claim_prepare(conf);
    conf->route = ngx_http_idem_figures_route(cf, mcf->figures);

    if (!conf->enable) {
        return NGX_CONF_OK;
    }

    ngx_http_idem_warn(cf, conf, mcf);

    return ngx_http_idem_check_content(cf, conf);
}
