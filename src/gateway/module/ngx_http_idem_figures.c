
/*
 * ngx_http_idem_figures.c - count what happens at the gate, by route, in a file
 * that all workers have mapped; an idem server shows it in its metrics.
 */


#include "ngx_http_idem.h"


static struct idem__figures *ngx_http_idem_figures_map(ngx_conf_t *cf,
    ngx_str_t *path);


static struct idem__figures  *ngx_http_idem_worker_figures;


/* workers of the old and the new configuration count in the same file */

char *
ngx_http_idem_figures_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_main_conf_t  *mcf = conf;

    ngx_str_t  *value;

    if (mcf->figures) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_conf_full_name(cf->cycle, &value[1], 0) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    mcf->figures = ngx_http_idem_figures_map(cf, &value[1]);

    return mcf->figures ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/* NGX_DECLINED: the file belongs to another program; NGX_ABORT: to another
 * build, whose old workers may still count in it */

static ngx_int_t
ngx_http_idem_figures_begin(ngx_fd_t fd)
{
    ssize_t               n;
    struct idem__figures  head;

    static const char  magic[] = IDEM__FIGURES_MAGIC;

    n = pread(fd, &head, offsetof(struct idem__figures, routes), 0);

    if (n < 0) {
        return NGX_ERROR;
    }

    if (n == (ssize_t) offsetof(struct idem__figures, routes)
        && ngx_memcmp(head.magic, magic, sizeof(magic)) == 0
        && head.size == sizeof(struct idem__figures)
        && head.used > 0 && head.used <= IDEM__FIGURES_ROUTES)
    {
        return NGX_OK;
    }

    if (n > 0) {
        return ngx_memcmp(head.magic, magic, sizeof(magic) - 1) == 0
               ? NGX_ABORT : NGX_DECLINED;
    }

    ngx_memzero(&head, sizeof(head));
    ngx_memcpy(head.magic, magic, sizeof(magic));
    head.size = sizeof(struct idem__figures);
    head.used = 1;
    ngx_memcpy(head.routes[0].name, "other", sizeof("other"));

    /* write all of it now: writing to a mapped file on a full disk would kill
     * the workers */

    return pwrite(fd, &head, sizeof(head), 0) == (ssize_t) sizeof(head)
           ? NGX_OK : NGX_ERROR;
}


static ngx_fd_t
ngx_http_idem_figures_open(ngx_str_t *path, ngx_int_t *rc)
{
    ngx_fd_t  fd;

    fd = open((char *) path->data, O_RDWR|O_CREAT|O_CLOEXEC|O_NOFOLLOW, 0644);

    *rc = fd == NGX_INVALID_FILE ? NGX_ERROR : ngx_http_idem_figures_begin(fd);

    return fd;
}


static void
ngx_http_idem_figures_unmap(void *data)
{
    (void) munmap(data, sizeof(struct idem__figures));
}


static struct idem__figures *
ngx_http_idem_figures_map(ngx_conf_t *cf, ngx_str_t *path)
{
    ngx_fd_t             fd;
    ngx_int_t            rc;
    struct stat          st;
    ngx_pool_cleanup_t  *cln;
    void                *map;

    cln = ngx_pool_cleanup_add(cf->cycle->pool, 0);
    if (cln == NULL) {
        return NULL;
    }

    fd = ngx_http_idem_figures_open(path, &rc);

    if (rc == NGX_ABORT) {
        (void) ngx_close_file(fd);
        (void) ngx_delete_file(path->data);
        fd = ngx_http_idem_figures_open(path, &rc);
    }

    map = MAP_FAILED;

    if (rc == NGX_OK && fstat(fd, &st) == 0
        && st.st_size >= (off_t) sizeof(struct idem__figures))
    {
        map = mmap(NULL, sizeof(struct idem__figures), PROT_READ|PROT_WRITE,
                   MAP_SHARED, fd, 0);
    }

    if (map == MAP_FAILED) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf,
                           rc == NGX_DECLINED ? 0 : ngx_errno,
                           rc == NGX_DECLINED
                           ? "\"%V\" is not a file of idem_figures: name another"
                           : "idem_figures cannot use \"%V\"", path);
    } else {
        cln->handler = ngx_http_idem_figures_unmap;
        cln->data = map;
    }

    if (fd != NGX_INVALID_FILE) {
        (void) ngx_close_file(fd);
    }

    return map == MAP_FAILED ? NULL : map;
}


/* characters that would need an escape in a label are percent-encoded */

static u_char *
ngx_http_idem_figures_name(u_char *p, u_char *last, ngx_str_t *s)
{
    u_char      c;
    ngx_uint_t  i;

    for (i = 0; i < s->len; i++) {
        c = s->data[i];

        if (c > 0x20 && c < 0x7f && c != '"' && c != '\\') {
            p = ngx_slprintf(p, last, "%c", c);

        } else {
            p = ngx_slprintf(p, last, "%%%02Xd", (ngx_int_t) c);
        }
    }

    return p;
}


/* a route is a location, with its server's name if it has one; routes beyond
 * the limit are counted as "other" */

ngx_uint_t
ngx_http_idem_figures_route(ngx_conf_t *cf, struct idem__figures *figures)
{
    u_char                     name[IDEM__FIGURES_NAME_MAX + 1], *p, *last;
    ngx_uint_t                 i;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_core_srv_conf_t  *cscf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);

    if (figures == NULL || clcf->name.len == 0) {
        return 0;
    }

    ngx_memzero(name, sizeof(name));
    last = name + IDEM__FIGURES_NAME_MAX;

    p = ngx_http_idem_figures_name(name, last, &cscf->server_name);
    (void) ngx_http_idem_figures_name(p, last, &clcf->name);

    for (i = 0; i < figures->used; i++) {
        if (ngx_memcmp(figures->routes[i].name, name, sizeof(name)) == 0) {
            return i;
        }
    }

    if (i == IDEM__FIGURES_ROUTES) {
        return 0;
    }

    ngx_memcpy(figures->routes[i].name, name, sizeof(name));
    __atomic_store_n(&figures->used, i + 1, __ATOMIC_RELEASE);

    return i;
}


void
ngx_http_idem_figures_start(struct idem__figures *figures)
{
    ngx_http_idem_worker_figures = figures;
}


static ngx_inline void
ngx_http_idem_figures_add(uint64_t *figure, uint64_t n)
{
    (void) __atomic_fetch_add(figure, n, __ATOMIC_RELAXED);
}


void
ngx_http_idem_figures_time(ngx_uint_t route, enum idem__figures_time what,
    ngx_msec_t time)
{
    ngx_uint_t                   i;
    struct idem__figures_route  *r;

    if (ngx_http_idem_worker_figures == NULL) {
        return;
    }

    for (i = 0; i < IDEM__FIGURES_BUCKETS - 1; i++) {
        if (time <= (ngx_msec_t) 1 << i) {
            break;
        }
    }

    r = &ngx_http_idem_worker_figures->routes[route];
    ngx_http_idem_figures_add(&r->times[what].bucket[i], 1);
    ngx_http_idem_figures_add(&r->times[what].sum_ms, time);
}


/* over all attempts; 0 if no service was asked */

static ngx_uint_t
ngx_http_idem_figures_upstream(ngx_http_request_t *r, ngx_msec_t *time)
{
    ngx_uint_t                  i, asked;
    ngx_http_upstream_state_t  *state;

    *time = 0;
    asked = 0;

    if (r->upstream_states == NULL) {
        return 0;
    }

    state = r->upstream_states->elts;

    for (i = 0; i < r->upstream_states->nelts; i++) {
        if (state[i].peer && state[i].response_time != (ngx_msec_t) -1) {
            *time += state[i].response_time;
            asked = 1;
        }
    }

    return asked;
}


/* a gated request has ended */

void
ngx_http_idem_figures_count(ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t                   i, asked;
    ngx_msec_t                   time;
    ngx_http_request_t          *r = ctx->request;
    struct idem__figures_route  *route;

    if (ngx_http_idem_worker_figures == NULL) {
        return;
    }

    asked = ngx_http_idem_figures_upstream(r, &time);

    if (asked) {
        ngx_http_idem_figures_time(ctx->conf->route, IDEM__FIGURES_UPSTREAM,
                                   time);
    }

    for (i = 0; i < IDEM__FIGURES_REFUSED; i++) {
        if (ctx->verdict.len == ngx_strlen(idem__figures_verdicts[i])
            && ngx_memcmp(ctx->verdict.data, idem__figures_verdicts[i],
                          ctx->verdict.len) == 0)
        {
            break;
        }
    }

    if (i == IDEM__FIGURES_REFUSED && !(r->headers_out.status >= 400 && !asked))
    {
        i = IDEM__FIGURES_PASSED;
    }

    route = &ngx_http_idem_worker_figures->routes[ctx->conf->route];
    ngx_http_idem_figures_add(&route->verdicts[i], 1);
}
