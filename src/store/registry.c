/*
 * registry.c - which stores this build has, and how a URL finds one.
 *
 * To add a store: write its constant, declare it in store.h, add a row.
 */
#include "store.h"

#include <string.h>

struct entry {
    const char *scheme;
    const struct idem_store_type *type; /* NULL: left out of this build */
    const char *build_switch;
};

static const struct entry entries[] = {
    {"memory", &idem__memory_store, NULL},
    {"journal", &idem__journal_store, NULL},
#ifdef IDEM_WITH_SQLITE
    {"sqlite", &idem__sqlite_store, NULL},
#else
    {"sqlite", NULL, "WITH_SQLITE"},
#endif
#ifdef IDEM_WITH_REDIS
    {"redis", &idem__redis_store, NULL},
    {"redis+cluster", &idem__redis_cluster_store, NULL},
    {"rediss", &idem__redis_store, NULL},
    {"rediss+cluster", &idem__redis_cluster_store, NULL},
#else
    {"redis", NULL, "WITH_REDIS"},
    {"redis+cluster", NULL, "WITH_REDIS"},
    {"rediss", NULL, "WITH_REDIS"},
    {"rediss+cluster", NULL, "WITH_REDIS"},
#endif
#ifdef IDEM_WITH_POSTGRES
    {"postgres", &idem__postgres_store, NULL},
    {"postgresql", &idem__postgres_store, NULL},
#else
    {"postgres", NULL, "WITH_POSTGRES"},
    {"postgresql", NULL, "WITH_POSTGRES"},
#endif
#ifdef IDEM_WITH_MYSQL
    {"mysql", &idem__mysql_store, NULL},
    {"mariadb", &idem__mysql_store, NULL},
#else
    {"mysql", NULL, "WITH_MYSQL"},
    {"mariadb", NULL, "WITH_MYSQL"},
#endif
#ifdef IDEM_WITH_ZOOKEEPER
    {"zookeeper", &idem__zookeeper_store, NULL},
#else
    {"zookeeper", NULL, "WITH_ZOOKEEPER"},
#endif
#ifdef IDEM_WITH_ETCD
    {"etcd", &idem__etcd_store, NULL},
#else
    {"etcd", NULL, "WITH_ETCD"},
#endif
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
    char shown[200];

    if (!entry) {
        idem__url_redact(url ? url : "", shown, sizeof(shown));
        return idem__fail(err, IDEM_ERR_INVALID,
                          "\"%s\" names no store: use memory:, journal:DIR, "
                          "sqlite:FILE, redis://, postgres://, mysql://, "
                          "zookeeper:// or etcd://",
                          shown);
    }
    if (!entry->type)
        return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                          "%s: was left out of this build: build idem with "
                          "%s=1",
                          entry->scheme, entry->build_switch);
    *type = entry->type;
    return IDEM_OK;
}

enum idem_status
idem__store_known(const char *url, struct idem_error *err)
{
    const struct idem_store_type *type;

    return find_type(url, &type, err);
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
    return type->share > 0 ? idem__split_open(type, url, options, store, err)
                           : type->open(url, options, store, err);
}

enum idem_status
idem__store_init(const char *url, struct idem_error *err)
{
    const struct idem_store_type *type;
    enum idem_status status = find_type(url, &type, err);

    if (status != IDEM_OK || !type->init)
        return status;
    return type->share > 0 ? idem__split_init(type, url, err)
                           : type->init(url, err);
}

void
idem__store_close(struct idem_store *store)
{
    if (store)
        store->type->close(store);
}
