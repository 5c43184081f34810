/*
 * registry.c - finds the store of a URL.
 *
 * To add a store: write its constant, declare it in store.h, add a row here
 * and, if it needs a library, one in builtin/builtin.c and in the Makefile.
 */
#include "store.h"

#include "../base/guess.h"
#include "../base/module.h"

#include <string.h>

struct entry {
    const char *scheme;
    const struct idem_store_type *type; /* NULL: in a module ... */
    const char *module, *symbol;        /* ... of this name, as this constant */
};

static const struct entry entries[] = {
    {"memory", &idem__memory_store, NULL, NULL},
    {"journal", &idem__journal_store, NULL, NULL},
    {"sqlite", NULL, "sqlite", "idem__sqlite_store"},
    {"redis", NULL, "redis", "idem__redis_store"},
    {"redis+cluster", NULL, "redis", "idem__redis_cluster_store"},
    {"redis+sentinel", NULL, "redis", "idem__redis_store"},
    {"rediss", NULL, "redis", "idem__redis_store"},
    {"rediss+cluster", NULL, "redis", "idem__redis_cluster_store"},
    {"rediss+sentinel", NULL, "redis", "idem__redis_store"},
    {"postgres", NULL, "postgres", "idem__postgres_store"},
    {"postgresql", NULL, "postgres", "idem__postgres_store"},
    {"mysql", NULL, "mysql", "idem__mysql_store"},
    {"mariadb", NULL, "mysql", "idem__mysql_store"},
    {"zookeeper", NULL, "zookeeper", "idem__zookeeper_store"},
    {"etcd", NULL, "etcd", "idem__etcd_store"},
};

static const struct entry *
find(const char *url)
{
    const char *colon = strchr(url, ':');
    size_t len = colon ? (size_t)(colon - url) : 0;

    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        if (strlen(entries[i].scheme) == len &&
            strncmp(entries[i].scheme, url, len) == 0)
            return &entries[i];
    }
    return NULL;
}

static enum idem_status
find_type(const char *url, const struct idem_store_type **type,
          struct idem_error *err)
{
    const struct entry *entry = url ? find(url) : NULL;
    struct idem__guess guess = {url ? url : "", 0, NULL, 0};
    char shown[120];

    if (!entry) {
        idem__url_redact_user(url ? url : "", shown, sizeof(shown));
        guess.len =
            guess.word[strcspn(guess.word, ":")] ? strcspn(guess.word, ":") : 0;
        for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
            idem__guess(&guess, entries[i].scheme);
        if (guess.name)
            return idem__fail(err, IDEM_ERR_INVALID,
                              "\"%s\" is not the URL of a store; did you mean "
                              "%s:%s?",
                              shown, guess.name,
                              strstr(shown, "://") ? "//" : "");
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\" is not the URL of a store: use memory:, "
                          "journal:DIR, sqlite:FILE, redis://, "
                          "redis+sentinel://, redis+cluster://, postgres://, "
                          "mysql://, zookeeper:// or etcd://",
                          shown);
    }
    *type = entry->type;
    return *type ? IDEM_OK
                 : idem__module_symbol(entry->module, entry->symbol,
                                       (const void **)type, err);
}

enum idem_status
idem__store_known(const char *url, struct idem_error *err)
{
    const struct idem_store_type *type;

    return find_type(url, &type, err);
}

enum idem_status
idem__store_parse(const char *url, struct idem_error *err)
{
    const struct idem_store_type *type;
    enum idem_status status = find_type(url, &type, err);

    if (status != IDEM_OK)
        return status;
    return type->share > 0 ? idem__split_parse(type, url, err)
                           : idem__store_parse_as(type, url, err);
}

enum idem_status
idem__store_open(const char *url, const struct idem_store_options *options,
                 struct idem_store **store, struct idem_error *err)
{
    static const struct idem_store_options defaults;
    const struct idem_store_type *type;
    enum idem_status status = find_type(url, &type, err);

    if (status != IDEM_OK)
        return status;
    if (!options)
        options = &defaults;
    return type->share > 0
               ? idem__split_open(type, url, options, store, err)
               : idem__store_open_as(type, url, options, store, err);
}

enum idem_status
idem__store_init(const char *url, struct idem_error *err)
{
    const struct idem_store_type *type;
    enum idem_status status = find_type(url, &type, err);

    if (status != IDEM_OK || !type->init)
        return status;
    return type->share > 0 ? idem__split_init(type, url, err)
                           : idem__store_init_as(type, url, err);
}
