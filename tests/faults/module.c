/*
 * module.c - linked into nginx's module, lets one call of the module fail: an
 * allocation of any size, also of a pool's, or a call of nginx or the kernel.
 *
 * The linker calls __wrap_X() where the module calls X() (module-faults in
 * src/gateway/module/module.mk). faults.c, which is loaded into nginx, knows
 * when one has to fail:
 *
 *   5  a call of the module fails
 *   6  a read or a write on the connection to the engine moves one byte
 *
 * Calls of nginx itself do not fail here.
 */
#include <errno.h>
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/mman.h>

#define FAILS 5
#define MOVES_ONE_BYTE 6

__attribute__((weak)) bool idem_fault(int kind, const char *name);

static bool
now(int kind, const char *name)
{
    return idem_fault && idem_fault(kind, name);
}

/* The call returns `failure`, and errno is `error`. */
#define FAILING(type, name, failure, error, params, args)                      \
    type __real_##name params;                                                 \
    type __wrap_##name params;                                                 \
    type __wrap_##name params                                                  \
    {                                                                          \
        if (!now(FAILS, #name))                                                \
            return __real_##name args;                                         \
        errno = error;                                                         \
        return failure;                                                        \
    }

/* ---- memory ----------------------------------------------------------------
 */

#define TAKES(name, params, args)                                              \
    FAILING(void *, name, NULL, ENOMEM, params, args)

TAKES(malloc, (size_t len), (len))
TAKES(calloc, (size_t count, size_t len), (count, len))
TAKES(realloc, (void *old, size_t len), (old, len))
TAKES(ngx_alloc, (size_t len, ngx_log_t *log), (len, log))
TAKES(ngx_palloc, (ngx_pool_t * pool, size_t len), (pool, len))
TAKES(ngx_pnalloc, (ngx_pool_t * pool, size_t len), (pool, len))
TAKES(ngx_pcalloc, (ngx_pool_t * pool, size_t len), (pool, len))
TAKES(ngx_array_push, (ngx_array_t * all), (all))
TAKES(ngx_array_push_n, (ngx_array_t * all, ngx_uint_t n), (all, n))
TAKES(ngx_list_push, (ngx_list_t * all), (all))
FAILING(ngx_array_t *, ngx_array_create, NULL, ENOMEM,
        (ngx_pool_t * pool, ngx_uint_t n, size_t len), (pool, n, len))
FAILING(ngx_pool_t *, ngx_create_pool, NULL, ENOMEM,
        (size_t len, ngx_log_t *log), (len, log))
FAILING(ngx_pool_cleanup_t *, ngx_pool_cleanup_add, NULL, ENOMEM,
        (ngx_pool_t * pool, size_t len), (pool, len))
FAILING(ngx_chain_t *, ngx_alloc_chain_link, NULL, ENOMEM, (ngx_pool_t * pool),
        (pool))
FAILING(ngx_buf_t *, ngx_create_temp_buf, NULL, ENOMEM,
        (ngx_pool_t * pool, size_t len), (pool, len))

/* ---- nginx -----------------------------------------------------------------
 */

#define ASKS(name, failure, params, args)                                      \
    FAILING(ngx_int_t, name, failure, 0, params, args)

FAILING(ngx_http_variable_t *, ngx_http_add_variable, NULL, 0,
        (ngx_conf_t * cf, ngx_str_t *name, ngx_uint_t flags), (cf, name, flags))
FAILING(ngx_http_variable_value_t *, ngx_http_get_indexed_variable, NULL, 0,
        (ngx_http_request_t * r, ngx_uint_t i), (r, i))
FAILING(ngx_http_variable_value_t *, ngx_http_get_flushed_variable, NULL, 0,
        (ngx_http_request_t * r, ngx_uint_t i), (r, i))
ASKS(ngx_http_get_variable_index, NGX_ERROR, (ngx_conf_t * cf, ngx_str_t *name),
     (cf, name))
ASKS(ngx_http_compile_complex_value, NGX_ERROR,
     (ngx_http_compile_complex_value_t * value), (value))
ASKS(ngx_http_complex_value, NGX_ERROR,
     (ngx_http_request_t * r, ngx_http_complex_value_t *from, ngx_str_t *to),
     (r, from, to))
ASKS(ngx_http_read_client_request_body, NGX_HTTP_INTERNAL_SERVER_ERROR,
     (ngx_http_request_t * r, ngx_http_client_body_handler_pt then), (r, then))
ASKS(ngx_http_discard_request_body, NGX_HTTP_INTERNAL_SERVER_ERROR,
     (ngx_http_request_t * r), (r))
ASKS(ngx_http_send_header, NGX_ERROR, (ngx_http_request_t * r), (r))
ASKS(ngx_http_output_filter, NGX_ERROR,
     (ngx_http_request_t * r, ngx_chain_t *in), (r, in))
ASKS(ngx_handle_write_event, NGX_ERROR, (ngx_event_t * event, size_t low),
     (event, low))
ASKS(ngx_ssl_create, NGX_ERROR,
     (ngx_ssl_t * ssl, ngx_uint_t protocols, void *data),
     (ssl, protocols, data))
ASKS(ngx_ssl_create_connection, NGX_ERROR,
     (ngx_ssl_t * ssl, ngx_connection_t *c, ngx_uint_t flags), (ssl, c, flags))
ASKS(ngx_ssl_handshake, NGX_ERROR, (ngx_connection_t * c), (c))
FAILING(ssize_t, ngx_read_file, NGX_ERROR, EIO,
        (ngx_file_t * file, u_char *to, size_t len, off_t at),
        (file, to, len, at))

/* ---- files -----------------------------------------------------------------
 */

FAILING(ssize_t, pread64, -1, EIO, (int fd, void *to, size_t len, off64_t at),
        (fd, to, len, at))
FAILING(ssize_t, pwrite64, -1, ENOSPC,
        (int fd, const void *from, size_t len, off64_t at), (fd, from, len, at))
FAILING(void *, mmap64, MAP_FAILED, ENOMEM,
        (void *at, size_t len, int mode, int flags, int fd, off64_t from),
        (at, len, mode, flags, fd, from))

/* ---- the connection to the engine ------------------------------------------
 */

static ngx_recv_pt real_recv, real_ssl_recv;
static ngx_send_pt real_send, real_ssl_send;

static ssize_t
moves(ngx_connection_t *c, ngx_recv_pt real, const char *name, u_char *data,
      size_t len)
{
    if (now(FAILS, name))
        return NGX_ERROR;
    return real(c, data, len > 1 && now(MOVES_ONE_BYTE, name) ? 1 : len);
}

static ssize_t
recv_or_not(ngx_connection_t *c, u_char *data, size_t len)
{
    return moves(c, c->ssl ? real_ssl_recv : real_recv, "recv", data, len);
}

static ssize_t
send_or_not(ngx_connection_t *c, u_char *data, size_t len)
{
    return moves(c, c->ssl ? real_ssl_send : real_send, "send", data, len);
}

ngx_int_t __real_ngx_event_connect_peer(ngx_peer_connection_t *peer);
ngx_int_t __wrap_ngx_event_connect_peer(ngx_peer_connection_t *peer);
ngx_int_t
__wrap_ngx_event_connect_peer(ngx_peer_connection_t *peer)
{
    ngx_int_t rc =
        now(FAILS, "connect") ? NGX_ERROR : __real_ngx_event_connect_peer(peer);

    if (peer->connection && peer->connection->recv != recv_or_not) {
        real_recv = peer->connection->recv;
        real_send = peer->connection->send;
        peer->connection->recv = recv_or_not;
        peer->connection->send = send_or_not;
    }
    return rc;
}

/* The module calls this for the engine's connection only. A handshake has put
 * functions of its own there. */
ngx_int_t __real_ngx_handle_read_event(ngx_event_t *event, ngx_uint_t flags);
ngx_int_t __wrap_ngx_handle_read_event(ngx_event_t *event, ngx_uint_t flags);
ngx_int_t
__wrap_ngx_handle_read_event(ngx_event_t *event, ngx_uint_t flags)
{
    ngx_connection_t *c = event->data;

    if (c->ssl && c->recv != recv_or_not) {
        real_ssl_recv = c->recv;
        real_ssl_send = c->send;
        c->recv = recv_or_not;
        c->send = send_or_not;
    }
    return now(FAILS, "ngx_handle_read_event")
               ? NGX_ERROR
               : __real_ngx_handle_read_event(event, flags);
}
