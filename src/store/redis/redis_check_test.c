/*
 * redis_check_test.c - tests which Redis servers are accepted, by what they
 * report about themselves.
 */
#include "redis.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char info[] = "# Server\r\nredis_version:7.0.15\r\n"
                           "run_id:0123456789abcdef\r\n"
                           "maxmemory_policy:noeviction\r\n"
                           "loading:0\r\naof_enabled:1\r\nrole:master\r\n"
                           "connected_slaves:1\r\ncluster_enabled:0\r\n"
                           "used_memory:9000000100\r\n"
                           "maxmemory:10000000000\r\n"
                           "mem_not_counted_for_evict:200\r\n";

static struct redis_facts
good(void)
{
    struct redis_facts facts;

    memset(&facts, 0, sizeof(facts));
    idem__redis_facts_read(info, sizeof(info) - 1, &facts);
    facts.fsync_seen = true;
    snprintf(facts.fsync, sizeof(facts.fsync), "always");
    return facts;
}

static enum idem_status
judge(const struct redis_facts *facts, const char *expected)
{
    static const struct redis_settings settings = {.replicas = 1};
    struct idem_error err = {IDEM_OK, ""};
    enum idem_status status = idem__redis_facts_judge(&settings, facts, &err);

    if (expected && !strstr(err.text, expected))
        fail_msg("\"%s\" does not say \"%s\"", err.text, expected);
    return status;
}

static void
info_is_read(void **state)
{
    struct redis_facts facts = good();

    (void)state;
    assert_true(facts.known && facts.master && facts.aof);
    assert_false(facts.cluster || facts.loading);
    assert_int_equal(facts.version, 70015);
    assert_int_equal(facts.replicas, 1);
    assert_string_equal(facts.policy, "noeviction");
    assert_string_equal(facts.run_id, "01234567");
    assert_int_equal(judge(&facts, NULL), IDEM_OK);
}

static void
full_is_nine_tenths_of_maxmemory(void **state)
{
    struct redis_facts facts = good();

    (void)state;
    assert_false(idem__redis_facts_full(&facts));
    facts.used_memory += 100;
    assert_true(idem__redis_facts_full(&facts));
    facts.max_memory = 0; /* no limit */
    assert_false(idem__redis_facts_full(&facts));
}

static void
calls_of_config_set_are_counted(void **state)
{
    static const char some[] = "# Commandstats\r\n"
                               "cmdstat_config|get:calls=7,usec=1\r\n"
                               "cmdstat_config|set:calls=12,usec=3\r\n";
    struct redis_facts facts = {.config_sets = -1};

    (void)state;
    idem__redis_facts_read_calls(some, sizeof(some) - 1, &facts);
    assert_int_equal(facts.config_sets, 12);
    idem__redis_facts_read_calls("x:1", 3, &facts);
    assert_int_equal(facts.config_sets, 0);
    idem__redis_facts_read_calls("cmdstat_config|set:12", 21, &facts);
    assert_int_equal(facts.config_sets, 0);
}

static void
cut_info_is_no_reason_to_crash(void **state)
{
    (void)state;
    for (size_t len = 0; len < sizeof(info) - 1; len++) {
        struct redis_facts facts;

        memset(&facts, 0, sizeof(facts));
        idem__redis_facts_read(info, len, &facts);
        assert_int_not_equal(judge(&facts, NULL), IDEM_OK);
    }
}

static void
each_flaw_is_named(void **state)
{
    struct redis_facts facts;

    (void)state;
    facts = good(), facts.known = false;
    assert_int_equal(judge(&facts, "INFO"), IDEM_ERR_UNSUPPORTED);
    facts = good(), facts.version = 60200;
    assert_int_equal(judge(&facts, "6.2 is too old"), IDEM_ERR_UNSUPPORTED);
    facts = good(), facts.cluster = true;
    assert_int_equal(judge(&facts, "redis+cluster"), IDEM_ERR_UNSUPPORTED);
    facts = good(), snprintf(facts.policy, sizeof(facts.policy), "allkeys-lru");
    assert_int_equal(judge(&facts, "maxmemory-policy"), IDEM_ERR_UNSUPPORTED);
    facts = good(), facts.aof = false;
    assert_int_equal(judge(&facts, "appendonly"), IDEM_ERR_UNSUPPORTED);
    facts = good(), snprintf(facts.fsync, sizeof(facts.fsync), "everysec");
    assert_int_equal(judge(&facts, "appendfsync"), IDEM_ERR_UNSUPPORTED);
    facts = good(), facts.fsync_seen = false;
    assert_int_equal(judge(&facts, "unsafe=unseen"), IDEM_ERR_UNSUPPORTED);
    facts = good(), facts.loading = true;
    assert_int_equal(judge(&facts, "loading"), IDEM_ERR_UNAVAILABLE);
    facts = good(), facts.master = false;
    assert_int_equal(judge(&facts, "replica"), IDEM_ERR_UNAVAILABLE);
    facts = good(), facts.replicas = 0;
    assert_int_equal(judge(&facts, "0 replica(s)"), IDEM_ERR_UNAVAILABLE);
}

/* The URL of Sentinels refuses replicas=0. */
static void
nobody_is_told_to_set_what_the_url_refuses(void **state)
{
    struct redis_settings settings = {.replicas = 1};
    struct redis_facts facts = good();
    struct idem_error err;

    (void)state;
    for (int sentinel = 0; sentinel < 2; sentinel++) {
        settings.sentinel = sentinel;
        settings.replicas = 2;
        for (facts.replicas = 0; facts.replicas < 2; facts.replicas++) {
            assert_int_equal(idem__redis_facts_judge(&settings, &facts, &err),
                             IDEM_ERR_UNAVAILABLE);
            assert_non_null(strstr(err.text, "; connect the missing ones"));
            assert_int_equal(strstr(err.text, "set replicas=") != NULL,
                             !sentinel || facts.replicas == 1);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(info_is_read),
        cmocka_unit_test(full_is_nine_tenths_of_maxmemory),
        cmocka_unit_test(calls_of_config_set_are_counted),
        cmocka_unit_test(cut_info_is_no_reason_to_crash),
        cmocka_unit_test(each_flaw_is_named),
        cmocka_unit_test(nobody_is_told_to_set_what_the_url_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
