/*
 * map.c - a hash table of structs that embed a link. It allocates only the
 * table; if the table cannot grow, it still works, but slower.
 */
#include "inner.h"

#include <stdlib.h>

#define FIRST_ROOM 64

static struct idem__link **
chain_of(const struct idem__map *map, uint64_t hash)
{
    return &map->chains[hash & (map->room - 1)];
}

static bool
grow(struct idem__map *map)
{
    struct idem__map old = *map;
    size_t room = old.room ? old.room * 2 : FIRST_ROOM;
    struct idem__link **chains = calloc(room, sizeof(*chains));

    if (!chains)
        return false;
    map->chains = chains;
    map->room = room;
    for (size_t i = 0; i < old.room; i++) {
        while (old.chains[i]) {
            struct idem__link *link = old.chains[i];
            struct idem__link **chain = chain_of(map, link->hash);

            old.chains[i] = link->next;
            link->next = *chain;
            *chain = link;
        }
    }
    free(old.chains);
    return true;
}

bool
idem__map_add(struct idem__map *map, struct idem__link *link, uint64_t hash)
{
    struct idem__link **chain;

    if (map->count >= map->room && !grow(map) && map->room == 0)
        return false;
    chain = chain_of(map, hash);
    link->hash = hash;
    link->next = *chain;
    *chain = link;
    map->count++;
    return true;
}

void
idem__map_remove(struct idem__map *map, struct idem__link *link)
{
    struct idem__link **at = chain_of(map, link->hash);

    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    map->count--;
}

static struct idem__link *
same_hash(struct idem__link *link, uint64_t hash)
{
    while (link && link->hash != hash)
        link = link->next;
    return link;
}

struct idem__link *
idem__map_find(const struct idem__map *map, uint64_t hash)
{
    return map->room ? same_hash(*chain_of(map, hash), hash) : NULL;
}

struct idem__link *
idem__map_next(const struct idem__link *link)
{
    return same_hash(link->next, link->hash);
}

void
idem__map_clear(struct idem__map *map)
{
    free(map->chains);
    *map = (struct idem__map){NULL, 0, 0};
}
