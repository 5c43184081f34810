
/*
 * ngx_http_idem_content.c - the content handlers that are allowed behind the
 * gate.
 *
 * A gated request is sent to one service once, and runs to its end even if the
 * client leaves.  That can be proven for the four modules below and for no
 * other content handler, so everything else is refused: when the configuration
 * is read, and when a claimed request is redirected to it inside of nginx.
 *
 * The content handler shows which module a location belongs to.  The address
 * does not show it, because it may be a variable.  Handlers are private to
 * their modules, so we find each one by applying the module's own directive to
 * an empty location and looking at the handler that it has set.
 */


#include "ngx_http_idem.h"


typedef struct {
    const char                 *module;
    const char                 *name;
    ngx_str_t                   pass;
    ngx_str_t                   address;
} ngx_http_idem_known_t;


static const ngx_http_idem_known_t  ngx_http_idem_known[] = {
    { "ngx_http_proxy_module", "proxy", ngx_string("proxy_pass"),
      ngx_string("http://$host") },
    { "ngx_http_fastcgi_module", "fastcgi", ngx_string("fastcgi_pass"),
      ngx_string("$host") },
    { "ngx_http_uwsgi_module", "uwsgi", ngx_string("uwsgi_pass"),
      ngx_string("$host") },
    { "ngx_http_scgi_module", "scgi", ngx_string("scgi_pass"),
      ngx_string("$host") }
};


static ngx_module_t *
ngx_http_idem_find_module(ngx_conf_t *cf, const char *name)
{
    ngx_uint_t  i;

    for (i = 0; cf->cycle->modules[i]; i++) {
        if (ngx_strcmp(cf->cycle->modules[i]->name, name) == 0) {
            return cf->cycle->modules[i];
        }
    }

    return NULL;
}


static ngx_command_t *
ngx_http_idem_find_command(ngx_module_t *module, const ngx_str_t *name)
{
    ngx_command_t  *cmd;

    for (cmd = module->commands; cmd->name.len; cmd++) {
        if (cmd->name.len == name->len
            && ngx_strcmp(cmd->name.data, name->data) == 0)
        {
            return cmd;
        }
    }

    return NULL;
}


static ngx_int_t
ngx_http_idem_learn(ngx_conf_t *cf, const ngx_http_idem_known_t *known,
    ngx_http_idem_content_t *content)
{
    void                      *conf;
    ngx_str_t                 *value;
    ngx_conf_t                 trial;
    ngx_array_t               *args;
    ngx_module_t              *module;
    ngx_command_t             *cmd;
    ngx_http_module_t         *hm;
    ngx_http_conf_ctx_t        ctx;
    ngx_http_core_loc_conf_t  *clcf;

    module = ngx_http_idem_find_module(cf, known->module);

    if (module == NULL) {
        return NGX_OK;           /* this nginx was built without the module */
    }

    cmd = ngx_http_idem_find_command(module, &known->pass);
    hm = module->ctx;
    conf = hm->create_loc_conf(cf);
    clcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_core_loc_conf_t));
    args = ngx_array_create(cf->pool, 2, sizeof(ngx_str_t));

    ctx = *(ngx_http_conf_ctx_t *) cf->ctx;
    ctx.loc_conf = ngx_pcalloc(cf->pool, sizeof(void *) * ngx_http_max_module);

    if (cmd == NULL || conf == NULL || clcf == NULL || args == NULL
        || ctx.loc_conf == NULL)
    {
        return NGX_ERROR;
    }

    value = ngx_array_push_n(args, 2);
    if (value == NULL) {
        return NGX_ERROR;
    }

    value[0] = known->pass;
    value[1] = known->address;

    ctx.loc_conf[ngx_http_core_module.ctx_index] = clcf;
    ctx.loc_conf[module->ctx_index] = conf;

    trial = *cf;
    trial.ctx = &ctx;
    trial.args = args;

    if (cmd->set(&trial, cmd, conf) != NGX_CONF_OK) {
        return NGX_ERROR;
    }

    content->ctx_index = module->ctx_index;
    content->handler = clcf->handler;

    return NGX_OK;
}


static char *
ngx_http_idem_learn_all(ngx_conf_t *cf, ngx_http_idem_main_conf_t *mcf)
{
    ngx_uint_t  i;

    if (mcf->learned) {
        return NGX_CONF_OK;
    }

    for (i = 0; i < NGX_HTTP_IDEM_CONTENTS; i++) {
        if (ngx_http_idem_learn(cf, &ngx_http_idem_known[i], &mcf->contents[i])
            != NGX_OK)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "idem: the content handler of \"%V\" was not "
                               "found", &ngx_http_idem_known[i].pass);
            return NGX_CONF_ERROR;
        }
    }

    mcf->learned = 1;

    return NGX_CONF_OK;
}


static const ngx_http_idem_known_t *
ngx_http_idem_content(ngx_http_idem_main_conf_t *mcf,
    ngx_http_handler_pt handler, ngx_uint_t *ctx_index)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_IDEM_CONTENTS; i++) {
        if (handler && mcf->contents[i].handler == handler) {
            *ctx_index = mcf->contents[i].ctx_index;
            return &ngx_http_idem_known[i];
        }
    }

    return NULL;
}


/* would nginx send a request of these methods a second time? */

static ngx_uint_t
ngx_http_idem_sends_again(ngx_http_upstream_conf_t *u, ngx_uint_t methods)
{
    ngx_uint_t  again;

    again = u->next_upstream & NGX_HTTP_UPSTREAM_FT_OFF
            ? 0 : u->next_upstream & ~NGX_CONF_BITMASK_SET;

    return (again & NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT)
           || (again && (methods & ~(NGX_HTTP_POST|NGX_HTTP_PATCH
                                     |NGX_HTTP_LOCK|NGX_CONF_BITMASK_SET)));
}


/* would nginx answer requests of these methods from its cache? */

static ngx_uint_t
ngx_http_idem_caches(ngx_http_upstream_conf_t *u, ngx_uint_t methods)
{
#if (NGX_HTTP_CACHE)

    return u->cache > 0
           && (u->cache_methods & methods & ~NGX_CONF_BITMASK_SET);

#else

    return 0;

#endif
}


/* the configuration of each of these modules begins with its upstream's */

static char *
ngx_http_idem_check_upstream(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf,
    ngx_http_upstream_conf_t *u, const char *name)
{
    const char                *needs, *value, *why;
    ngx_http_core_srv_conf_t  *cscf;
    ngx_http_core_loc_conf_t  *clcf;

    if (u->ignore_client_abort != 1) {
        needs = "ignore_client_abort";
        value = "on";
        why = "a request that has begun must go on if its client leaves";

    } else if (ngx_http_idem_sends_again(u, conf->methods)) {
        needs = "next_upstream";
        value = "off";
        why = "a request of which a byte was sent must not be sent again";

    } else if (ngx_http_idem_caches(u, conf->methods)) {
        needs = "cache";
        value = "off";
        why = "a response out of a cache is no execution";

    } else {
        return NGX_CONF_OK;
    }

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "\"idem on\" in the location \"%V\" of the server "
                       "at %s:%ui needs \"%s_%s %s\": %s",
                       &clcf->name, cscf->file_name, cscf->line, name, needs,
                       value, why);

    return NGX_CONF_ERROR;
}


char *
ngx_http_idem_check_content(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf)
{
    ngx_uint_t                    ctx_index;
    ngx_http_conf_ctx_t          *ctx;
    ngx_http_core_srv_conf_t     *cscf;
    ngx_http_core_loc_conf_t     *clcf;
    ngx_http_idem_main_conf_t    *mcf;
    const ngx_http_idem_known_t  *known;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idem_module);
    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (ngx_http_idem_learn_all(cf, mcf) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    if (clcf->handler == NULL || clcf->handler == ngx_http_idem_token_handler) {
        return NGX_CONF_OK;
    }

    known = ngx_http_idem_content(mcf, clcf->handler, &ctx_index);

    if (known == NULL) {
        cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"idem on\" cannot guard the location \"%V\" of "
                           "the server at %s:%ui: only what \"proxy_pass\", "
                           "\"fastcgi_pass\", \"uwsgi_pass\" or \"scgi_pass\" "
                           "sends can be proven to run once; write \"idem "
                           "off\" in this location, or pass its requests on "
                           "with one of these",
                           &clcf->name, cscf->file_name, cscf->line);
        return NGX_CONF_ERROR;
    }

    ctx = cf->ctx;

    return ngx_http_idem_check_upstream(cf, conf, ctx->loc_conf[ctx_index],
                                        known->name);
}


/* a claimed request came here from another location: apply the same rules */

ngx_uint_t
ngx_http_idem_location_is_safe(ngx_http_request_t *r, ngx_uint_t method)
{
    ngx_uint_t                    ctx_index;
    ngx_http_upstream_conf_t     *u;
    ngx_http_idem_main_conf_t    *mcf;
    const ngx_http_idem_known_t  *known;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idem_module);

    known = ngx_http_idem_content(mcf, r->content_handler, &ctx_index);

    if (known == NULL) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idem: a gated request was redirected to a location "
                      "that does not use \"proxy_pass\", \"fastcgi_pass\", "
                      "\"uwsgi_pass\" or \"scgi_pass\": it was not run");
        return 0;
    }

    u = r->loc_conf[ctx_index];

    if (u->ignore_client_abort != 1 || ngx_http_idem_sends_again(u, method)) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idem: a gated request was redirected to a location "
                      "that could send it twice or stop it half-way: it was "
                      "not run; the location needs \"%s_next_upstream off\" "
                      "and \"%s_ignore_client_abort on\"",
                      known->name, known->name);
        return 0;
    }

    if (ngx_http_idem_caches(u, method)) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idem: a gated request was redirected to a location "
                      "that could answer it from a cache: it was not run; the "
                      "location needs \"%s_cache off\"", known->name);
        return 0;
    }

    return 1;
}
