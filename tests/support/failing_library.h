/*
 * failing_library.h - lets allocations of jansson and SQLite fail, which allow
 * us to replace malloc. After failing_alloc.h.
 */
#ifndef IDEM_TESTS_FAILING_LIBRARY_H
#define IDEM_TESTS_FAILING_LIBRARY_H

#include <jansson.h>
#include <stdlib.h>
#ifdef IDEM_WITH_SQLITE
#include <sqlite3.h>
#endif

/* Must this allocation fail? */
static bool library_alloc_fails(void);

static void *
take(size_t len)
{
    return library_alloc_fails() ? NULL : __real_malloc(len);
}

#ifdef IDEM_WITH_SQLITE
/* SQLite asks for the size of a block, and counts with multiples of eight. */
struct block {
    int len;
    _Alignas(16) char data[];
};

static void *
sqlite_take(int len)
{
    struct block *block = take(sizeof(*block) + (size_t)len);

    if (!block)
        return NULL;
    block->len = len;
    return block->data;
}

static struct block *
block_of(void *data)
{
    return (struct block *)((char *)data - offsetof(struct block, data));
}

static void
sqlite_drop(void *data)
{
    if (data)
        free(block_of(data));
}

static void *
sqlite_resize(void *data, int len)
{
    struct block *block =
        library_alloc_fails()
            ? NULL
            : __real_realloc(block_of(data), sizeof(*block) + (size_t)len);

    if (!block)
        return NULL;
    block->len = len;
    return block->data;
}

static int
sqlite_size(void *data)
{
    return data ? block_of(data)->len : 0;
}

static int
sqlite_round(int len)
{
    return (len + 7) & ~7;
}

static int
sqlite_start(void *arg)
{
    (void)arg;
    return SQLITE_OK;
}

static void
sqlite_stop(void *arg)
{
    (void)arg;
}
#endif

/* Before the libraries are used. */
static void
fail_in_libraries(void)
{
    json_set_alloc_funcs(take, free);
#ifdef IDEM_WITH_SQLITE
    static const sqlite3_mem_methods methods = {
        sqlite_take,  sqlite_drop,  sqlite_resize, sqlite_size,
        sqlite_round, sqlite_start, sqlite_stop,   NULL};

    if (sqlite3_config(SQLITE_CONFIG_MALLOC, &methods) != SQLITE_OK)
        abort();
#endif
}

#endif
