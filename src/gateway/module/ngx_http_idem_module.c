
/*
 * ngx_http_idem_module.c - start and stop of the module.
 */


#include "ngx_http_idem.h"


static ngx_int_t ngx_http_idem_init(ngx_conf_t *cf);
static ngx_int_t ngx_http_idem_init_process(ngx_cycle_t *cycle);
static void ngx_http_idem_exit_process(ngx_cycle_t *cycle);


static ngx_http_idem_engine_t  *ngx_http_idem_worker_engine;
static ngx_uint_t               ngx_http_idem_orphaned;


static ngx_http_module_t  ngx_http_idem_module_ctx = {
    ngx_http_idem_add_variables,           /* preconfiguration */
    ngx_http_idem_init,                    /* postconfiguration */

    ngx_http_idem_create_main_conf,        /* create main configuration */
    ngx_http_idem_init_main_conf,          /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_idem_create_loc_conf,         /* create location configuration */
    ngx_http_idem_merge_loc_conf           /* merge location configuration */
};


ngx_module_t  ngx_http_idem_module = {
    NGX_MODULE_V1,
    &ngx_http_idem_module_ctx,             /* module context */
    ngx_http_idem_commands,                /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    ngx_http_idem_init_process,            /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_idem_exit_process,            /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


ngx_http_idem_engine_t *
ngx_http_idem_engine(void)
{
    return ngx_http_idem_worker_engine;
}


/*
 * A worker does not notice that its master was killed.  It would listen
 * forever, and nothing could be started in its place.  So it stops listening
 * and finishes its requests, within a time limit, because the engine may be
 * gone as well.
 */

static void
ngx_http_idem_follow_handler(ngx_event_t *ev)
{
    ngx_http_idem_main_conf_t  *mcf = ev->data;

    if (getppid() == ngx_parent) {
        ngx_add_timer(ev, NGX_HTTP_IDEM_FOLLOW);
        return;
    }

    if (ngx_http_idem_orphaned == 0) {
        ngx_log_error(NGX_LOG_ALERT, ev->log, 0,
                      "idem: the master process is gone, this worker ends");

        ngx_http_idem_orphaned = 1;
        ngx_quit = 1;
        ngx_add_timer(ev, mcf->end_with_master);
        return;
    }

    ngx_terminate = 1;
}


static void
ngx_http_idem_follow_master(ngx_http_idem_main_conf_t *mcf,
    ngx_cycle_t *cycle)
{
    static ngx_event_t  ev;

    ev.handler = ngx_http_idem_follow_handler;
    ev.data = mcf;
    ev.log = cycle->log;
    ev.cancelable = 1;

    ngx_add_timer(&ev, NGX_HTTP_IDEM_FOLLOW);
}


static ngx_int_t
ngx_http_idem_init_process(ngx_cycle_t *cycle)
{
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_idem_module);

    if (mcf == NULL || mcf->engine == NULL
        || (ngx_process != NGX_PROCESS_WORKER
            && ngx_process != NGX_PROCESS_SINGLE))
    {
        return NGX_OK;
    }

    if (mcf->end_with_master && ngx_process == NGX_PROCESS_WORKER) {
        ngx_http_idem_follow_master(mcf, cycle);
    }

    ngx_http_idem_worker_engine = mcf->engine;
    ngx_http_idem_figures_start(mcf->figures);

    return ngx_http_idem_engine_start(mcf->engine, cycle);
}


static void
ngx_http_idem_exit_process(ngx_cycle_t *cycle)
{
    if (ngx_http_idem_worker_engine) {
        ngx_http_idem_engine_stop(ngx_http_idem_worker_engine);
    }
}


static ngx_int_t
ngx_http_idem_init(ngx_conf_t *cf)
{
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idem_module);

    if (mcf->engine == NULL) {
        return NGX_OK;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_POST_READ_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_idem_strip_handler;

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_POST_READ_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_idem_problem_page_handler;

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_PRECONTENT_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_idem_handler;

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_CONTENT_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_idem_local_handler;

    ngx_http_idem_body_init();

    return ngx_http_idem_hold_init(cf);
}


#if (IDEM_FAILPOINTS)

/* if the test has created a file of this name, report that we are here and wait
 * until it removes the other file */

void
ngx_http_idem_failpoint(const char *name)
{
    int          i;
    char         at[256], hit[256];
    const char  *dir;

    dir = getenv("IDEM_STEPS");

    if (dir == NULL
        || (size_t) snprintf(at, sizeof(at), "%s/%s", dir, name) >= sizeof(at)
        || (size_t) snprintf(hit, sizeof(hit), "%s/%s.hit", dir, name)
           >= sizeof(hit)
        || rename(at, hit) != 0)
    {
        return;
    }

    for (i = 0; i < 2000 && access(hit, F_OK) == 0; i++) {
        ngx_msleep(10);
    }
}

#endif
