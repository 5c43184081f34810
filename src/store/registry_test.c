/*
 * registry_test.c - tests how a URL finds its store, and that errors never show
 * a password.
 */
#include "store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void
refused(const char *url, enum idem_status want, const char *text)
{
    struct idem_store *store = NULL;
    struct idem_error err = {0};
    enum idem_status status = idem__store_open(url, NULL, &store, &err);

    assert_null(store);
    if (status != want || !strstr(err.text, text))
        fail_msg("%s: %s: \"%s\" does not say \"%s\"", url ? url : "NULL",
                 idem_status_name(status), err.text, text);
    assert_int_equal(idem__store_open(url, NULL, &store, NULL), want);
    if (want != IDEM_ERR_INVALID)
        return;
    err.text[0] = 0; /* without a look at the store itself */
    assert_int_equal(idem__store_parse(url, &err), want);
    assert_non_null(strstr(err.text, text));
}

static void
a_url_that_names_no_store_is_refused_with_those_that_exist(void **state)
{
    (void)state;
    refused(NULL, IDEM_ERR_INVALID, "is not the URL of a store");
    refused("", IDEM_ERR_INVALID, "is not the URL of a store");
    refused("/var/lib/idem", IDEM_ERR_INVALID, "journal:DIR");
    refused("oracle://host", IDEM_ERR_INVALID, "\"oracle://host\"");
    refused("oracle://host", IDEM_ERR_INVALID, "redis+sentinel://");
    refused("oracle://host", IDEM_ERR_INVALID, "or etcd://");
    refused("redsi://host", IDEM_ERR_INVALID, "did you mean redis://?");
    refused("jornal:/var/lib/idem", IDEM_ERR_INVALID, "did you mean journal:?");
    refused("mem:", IDEM_ERR_INVALID, "did you mean memory:?");
    refused("MEMORY:", IDEM_ERR_INVALID, "memory:");
    refused(":", IDEM_ERR_INVALID, "is not the URL of a store");
    refused("memory:somewhere", IDEM_ERR_INVALID, "nothing follows memory:");
}

#define LONG                                                                   \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" \
    "aa"                                                                       \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" \
    "aa"
#define HOSTS_17 "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"

static void
an_address_that_a_store_cannot_use_is_refused(void **state)
{
    (void)state;
#ifdef IDEM_WITH_SQLITE
    refused("sqlite:", IDEM_ERR_INVALID, "write sqlite:FILE");
    refused("sqlite::memory:", IDEM_ERR_INVALID, "write sqlite:FILE");
    refused("sqlite:/tmp/db?cache=1", IDEM_ERR_INVALID, "write sqlite:FILE");
    refused("sqlite:/tmp/db?mode=fast", IDEM_ERR_INVALID, "use mode=rollback");
    refused("sqlite:/no such folder/db", IDEM_ERR_UNAVAILABLE, "name a file");
#endif
#ifdef IDEM_WITH_REDIS
    refused("redis:host", IDEM_ERR_INVALID, "write //");
    refused("redis://", IDEM_ERR_INVALID, "host name is missing");
    refused("redis://h:0", IDEM_ERR_INVALID, "1 to 65535");
    refused("redis://h:70000", IDEM_ERR_INVALID, "1 to 65535");
    refused("redis://h:99999999999999999999", IDEM_ERR_INVALID, "1 to 65535");
    refused("redis://h:", IDEM_ERR_INVALID, "1 to 65535");
    refused("redis://h:1x", IDEM_ERR_INVALID, "1 to 65535");
    refused("redis://[::1", IDEM_ERR_INVALID, "ends with");
    refused("redis://[::1]1", IDEM_ERR_INVALID, "ends with");
    refused("redis://[::1]:0", IDEM_ERR_INVALID, "1 to 65535");
    refused("redis://" HOSTS_17 "," HOSTS_17, IDEM_ERR_INVALID, "too many");
    refused("redis://%zz:a@h", IDEM_ERR_INVALID, "% escape");
    refused("redis://a:%zz@h", IDEM_ERR_INVALID, "% escape");
    refused("redis://h/%00", IDEM_ERR_INVALID, "% escape");
    refused("redis://h?wait_ms", IDEM_ERR_INVALID, "needs a value");
    refused("redis://h?wait_ms=", IDEM_ERR_INVALID, "needs a value");
    refused("redis://h?wait_ms=x", IDEM_ERR_INVALID, "give a number");
    refused("redis://h?wait_ms=0", IDEM_ERR_INVALID, "give a number");
    refused("redis://h?wait_ms=99999", IDEM_ERR_INVALID, "give a number");
    refused("redis://h?wait_ns=1", IDEM_ERR_INVALID, "did you mean");
    refused("redis://h?colour=red", IDEM_ERR_INVALID, "only replicas");
    refused("redis://h/one", IDEM_ERR_INVALID, "not a database number");
    refused("redis://h/1x", IDEM_ERR_INVALID, "not a database number");
    refused("redis+cluster://h/1", IDEM_ERR_INVALID, "no numbered databases");
    refused("redis://h?prefix=a%20b", IDEM_ERR_INVALID, "a prefix is up to");
    refused("redis://h?prefix=" LONG, IDEM_ERR_INVALID, "a prefix is up to");
    refused("redis://h?unsafe=forgot", IDEM_ERR_INVALID, "unsafe is");
    refused("redis://h?unsafe=everysex", IDEM_ERR_INVALID, "unsafe is");
    refused("redis://h?unsafe=unseen,all", IDEM_ERR_INVALID, "unsafe is");
    refused("redis+sentinel://h", IDEM_ERR_INVALID, "name the primary");
    refused("redis+sentinel://h/a%20b", IDEM_ERR_INVALID, "name the primary");
    refused("redis+sentinel://h/" LONG, IDEM_ERR_INVALID, "name the primary");
    refused("redis+sentinel://h/m/x", IDEM_ERR_INVALID, "database number");
    refused("redis+sentinel://h/m?replicas=0", IDEM_ERR_INVALID,
            "set replicas= to the number of replicas");
    refused("redis+sentinel://" HOSTS_17 "/m", IDEM_ERR_INVALID, "at most 16");
    refused("redis://h?cert=c", IDEM_ERR_INVALID, "rediss");
    refused("redis://h?key=k", IDEM_ERR_INVALID, "rediss");
#endif
#ifdef IDEM_WITH_ZOOKEEPER
    refused("zookeeper://h//x", IDEM_ERR_INVALID, "is not a path");
    refused("zookeeper://h/x/", IDEM_ERR_INVALID, "is not a path");
    refused("zookeeper://h/a//b", IDEM_ERR_INVALID, "is not a path");
    refused("zookeeper://h/" LONG, IDEM_ERR_INVALID, "is not a path");
    refused("zookeeper://h?session_ms=1", IDEM_ERR_INVALID, "give a number");
#endif
#ifdef IDEM_WITH_ETCD
    refused("etcd://h/" LONG, IDEM_ERR_INVALID, "the prefix is too long");
    refused("etcd://h?timeout_ms=0", IDEM_ERR_INVALID, "give a number");
    refused("etcd://h?cacert=x", IDEM_ERR_INVALID, "there is no option");
#endif
#ifdef IDEM_WITH_POSTGRES
    refused("postgres://h?connections=9", IDEM_ERR_INVALID, "from 1 to 8");
    refused("postgres://h?share=0", IDEM_ERR_INVALID, "from 1 to 1000000");
#endif
}

static void
only_a_refused_option_tls_is_answered_with_rediss(void **state)
{
    (void)state;
#ifdef IDEM_WITH_REDIS
    refused("redis+cluster://h?tls=1", IDEM_ERR_INVALID,
            "for TLS write rediss+cluster://");
    refused("redis://h?replicas=1&tls=1", IDEM_ERR_INVALID,
            "for TLS write rediss://");
    refused("redis://h?foo=1&tls=1", IDEM_ERR_INVALID, "no option \"foo\"");
    refused("redis://h:0?tls=1", IDEM_ERR_INVALID, "1 to 65535");
    refused("redis://h?ca=&tls=1", IDEM_ERR_INVALID, "\"ca\" needs a value");
    refused("rediss://h?tls=1", IDEM_ERR_INVALID, "without the option tls");
#endif
}

static void
a_url_is_read_without_a_look_at_the_store(void **state)
{
    static const char *const good[] = {
        "memory:",
        "journal:/no/such/folder?clock=trust",
#ifdef IDEM_WITH_SQLITE
        "sqlite:/no/such/folder/file?mode=wal",
#endif
#ifdef IDEM_WITH_REDIS
        "redis://u:p@127.0.0.1:1/3?replicas=1",
        "redis+cluster://127.0.0.1:1",
        "rediss+sentinel://127.0.0.1:1,127.0.0.1:2/mymaster",
#endif
#ifdef IDEM_WITH_POSTGRES
        "postgres://u:p@127.0.0.1:1/d?connections=3&timeout_ms=100",
#endif
#ifdef IDEM_WITH_MYSQL
        "mysql://u:p@127.0.0.1:1/d?share=9&tls=1",
#endif
#ifdef IDEM_WITH_ZOOKEEPER
        "zookeeper://127.0.0.1:1,127.0.0.1:2/idem",
#endif
#ifdef IDEM_WITH_ETCD
        "etcd://127.0.0.1:1/idem?tls=1",
#endif
    };
    struct idem_error err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        if (idem__store_parse(good[i], &err) != IDEM_OK)
            fail_msg("%s: %s", good[i], err.text);
}

static void
a_password_never_appears_in_an_error(void **state)
{
    struct idem_store *store = NULL;
    struct idem_error err = {0};

    (void)state;
    assert_int_equal(idem__store_open("oracle://scott:tiger@host:1521/db", NULL,
                                      &store, &err),
                     IDEM_ERR_INVALID);
    assert_null(strstr(err.text, "tiger"));
    assert_non_null(strstr(err.text, "oracle://***@host"));
}

static void
redacting_hides_the_password_and_nothing_else(void **state)
{
    static const char *const rows[][2] = {
        {"redis://host:6379", "redis://host:6379"},
        {"redis://:secret@host", "redis://:***@host"},
        {"postgres://u:p@h/db?x=y", "postgres://u:***@h/db?x=y"},
        {"postgres://u@h/db", "postgres://u@h/db"},
        {"mysql://u:p:with:colons@h", "mysql://u:***@h"},
        {"mysql://u:p@with@at@h", "mysql://u:***@h"},
        {"mysql://u:p/with?marks@h/d?x=y", "mysql://u:***@h/d?x=y"},
        {"postgres://h:5432/db?user=u&password=s@cret&sslpassword=p",
         "postgres://h:5432/db?user=u&password=***&sslpassword=***"},
        {"postgres://u:p?mark@h/db?sslpassword=s",
         "postgres://u:***@h/db?sslpassword=***"},
        {"postgres://u:p@h/db?password=s",
         "postgres://u:***@h/db?password=***"},
        {"journal:/var/lib/a@b:c", "journal:/var/lib/a@b:c"},
    };
    char out[100];

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        idem__url_redact(rows[i][0], out, sizeof(out));
        assert_string_equal(out, rows[i][1]);
    }
    idem__url_redact("redis://:secret@host", out, 8); /* truncated */
    assert_string_equal(out, "redis:/");
}

static void
revs_are_never_zero_and_differ(void **state)
{
    uint64_t last = 0;

    (void)state;
    for (int i = 0; i < 1000; i++) {
        uint64_t rev = idem__new_rev();

        assert_true(rev != 0 && rev != last);
        last = rev;
    }
    idem__store_close(NULL); /* is fine */
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            a_url_that_names_no_store_is_refused_with_those_that_exist),
        cmocka_unit_test(an_address_that_a_store_cannot_use_is_refused),
        cmocka_unit_test(only_a_refused_option_tls_is_answered_with_rediss),
        cmocka_unit_test(a_url_is_read_without_a_look_at_the_store),
        cmocka_unit_test(a_password_never_appears_in_an_error),
        cmocka_unit_test(redacting_hides_the_password_and_nothing_else),
        cmocka_unit_test(revs_are_never_zero_and_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
