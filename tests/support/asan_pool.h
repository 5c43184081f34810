/*
 * asan_pool.h - what the module takes from nginx's pools, each piece by itself.
 *
 * A pool is one large allocation to a sanitizer, which then sees no end of what
 * lies in it. Where the module is built with this, every piece it takes is an
 * allocation of its own, freed with the pool as large pieces are.
 */
#ifndef IDEM_ASAN_POOL_H
#define IDEM_ASAN_POOL_H

#include <ngx_config.h>
#include <ngx_core.h>

static inline void *
pool_piece(ngx_pool_t *pool, size_t size, int zero)
{
    void *piece = ngx_pmemalign(pool, size ? size : 1, NGX_ALIGNMENT);

    return piece != NULL && zero ? memset(piece, 0, size) : piece;
}

#define ngx_palloc(pool, size) pool_piece(pool, size, 0)
#define ngx_pnalloc(pool, size) pool_piece(pool, size, 0)
#define ngx_pcalloc(pool, size) pool_piece(pool, size, 1)

#endif
