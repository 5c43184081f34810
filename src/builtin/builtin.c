/*
 * builtin.c - every module linked in: in libidem.a and in the tests, this takes
 * the place of base/module.c.
 */
#include "../base/module.h"
#include "../consume/consume.h"
#include "../sql/driver.h"
#include "../sql/sandbox.h"
#include "../store/store.h"

#include <ctype.h>
#include <string.h>

static const struct {
    const char *symbol;
    const void *constant;
} constants[] = {
#ifdef IDEM_WITH_SQLITE
    {"idem__sqlite_store", &idem__sqlite_store},
    {"idem__sql_sqlite", &idem__sql_sqlite},
    {"idem__sandbox_sqlite", &idem__sandbox_sqlite},
#endif
#ifdef IDEM_WITH_REDIS
    {"idem__redis_store", &idem__redis_store},
    {"idem__redis_cluster_store", &idem__redis_cluster_store},
    {"idem__redis_stream_source", &idem__redis_stream_source},
#endif
#ifdef IDEM_WITH_POSTGRES
    {"idem__postgres_store", &idem__postgres_store},
    {"idem__sql_postgres", &idem__sql_postgres},
#endif
#ifdef IDEM_WITH_MYSQL
    {"idem__mysql_store", &idem__mysql_store},
    {"idem__sql_mysql", &idem__sql_mysql},
#endif
#ifdef IDEM_WITH_ZOOKEEPER
    {"idem__zookeeper_store", &idem__zookeeper_store},
#endif
#ifdef IDEM_WITH_ETCD
    {"idem__etcd_store", &idem__etcd_store},
#endif
#ifdef IDEM_WITH_RABBITMQ
    {"idem__rabbitmq_source", &idem__rabbitmq_source},
#endif
#ifdef IDEM_WITH_KAFKA
    {"idem__kafka_source", &idem__kafka_source},
#endif
#ifdef IDEM_WITH_NATS
    {"idem__nats_source", &idem__nats_source},
#endif
    {NULL, NULL},
};

enum idem_status
idem__module_symbol(const char *module, const char *symbol, const void **found,
                    struct idem_error *err)
{
    char name[32] = "";

    for (size_t i = 0; constants[i].symbol; i++) {
        if (strcmp(constants[i].symbol, symbol) == 0) {
            *found = constants[i].constant;
            return IDEM_OK;
        }
    }
    for (size_t i = 0; module[i] && i < sizeof(name) - 1; i++)
        name[i] = (char)toupper((unsigned char)module[i]);
    return idem__fail(err, IDEM_ERR_UNSUPPORTED,
                      "%s: was left out of this build: build idem with "
                      "WITH_%s=1",
                      module, name);
}
