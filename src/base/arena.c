/*
 * arena.c - memory that is freed all at once.
 */
#include "buf.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_LEN (64 * 1024)

struct idem_arena_block {
    struct idem_arena_block *next;
    size_t room;
    uint8_t data[];
};

void *
idem_arena_take(struct idem_arena *arena, size_t len)
{
    struct idem_arena_block *block = arena->blocks;
    size_t room = len > BLOCK_LEN ? len : BLOCK_LEN;
    void *at;

    if (len > SIZE_MAX / 2)
        return NULL;
    len = (len + 15) & ~(size_t)15;
    if (room < len)
        room = len;
    if (!block || block->room - arena->used < len) {
        block = malloc(sizeof(*block) + room);
        if (!block)
            return NULL;
        block->next = arena->blocks;
        block->room = room;
        arena->blocks = block;
        arena->used = 0;
    }
    at = block->data + arena->used;
    arena->used += len;
    return at;
}

static void
drop(struct idem_arena_block *block)
{
    while (block) {
        struct idem_arena_block *next = block->next;

        free(block);
        block = next;
    }
}

void
idem_arena_reset(struct idem_arena *arena)
{
    struct idem_arena_block *first = arena->blocks;

    arena->used = 0;
    if (!first)
        return;
    drop(first->next);
    first->next = NULL;
    if (first->room > BLOCK_LEN) {
        free(first);
        arena->blocks = NULL;
    }
}

void
idem_arena_clear(struct idem_arena *arena)
{
    drop(arena->blocks);
    *arena = (struct idem_arena){NULL, 0};
}
