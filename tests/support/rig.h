/*
 * rig.h - engines under test: driven by the test, on clocks that stand still,
 * on a memory store behind one that fails when told to.
 */
#ifndef IDEM_TESTS_RIG_H
#define IDEM_TESTS_RIG_H

#include "../../src/engine/engine.h"
#include "faulty_store.h"

struct rig {
    struct test_clocks clocks;
    pthread_mutex_t lock;
    struct idem_store *memory; /* outlives the engines on it */
    struct faulty_store *store;
    struct idem_engine *engine;
    int logged;     /* alarms and warnings */
    char said[256]; /* the last of them */
};

/* What one op got. */
struct reply {
    bool done;
    int times;
    int order; /* 1 for the first reply of all */
    enum idem_status status;
    enum idem_verdict verdict;
    enum idem_state state;
    uint64_t fence;
    int64_t retry_after_ms;
    char result[64];
    char text[256];
    uint64_t ticket;
};

void rig_open(struct rig *rig, enum faulty_kind kind,
              const struct idem_options *options);
void rig_close(struct rig *rig);

/* A test whose state is an open rig of this kind. No op may wait when the
 * test returns: its reply would be written to a frame that is gone. */
#define rig_test(test, kind)                                                   \
    rig_test_with(test, rig_setup, (void *)(uintptr_t)(kind))
#define rig_test_with(test, setup, prestate)                                   \
    cmocka_unit_test_prestate_setup_teardown(test, setup, rig_teardown,        \
                                             prestate)
int rig_setup(void **state);
int rig_teardown(void **state);

/* Another engine on the same memory store, with clocks of the same rig; close
 * it with idem_close. */
struct idem_engine *rig_engine(struct rig *rig, enum faulty_kind kind,
                               const struct idem_options *options,
                               struct faulty_store **store);

/* Submit, and take turns until it is answered or (a wait) parked. */
void put(struct idem_engine *engine, const struct idem_op *op,
         struct reply *reply);
void turn(struct idem_engine *engine); /* until nothing waits */
struct reply ask(struct idem_engine *engine, const struct idem_op *op);

/* Operations on one scope, in short. */
struct idem_op op_begin(const char *id);
struct idem_op op_wait(const char *id, int64_t wait_ms);
struct idem_op op_finish(const char *id, uint64_t fence, const char *result);
struct idem_op op_fail(const char *id, uint64_t fence, const char *result);
struct idem_op op_release(const char *id, uint64_t fence);
struct idem_op op_renew(const char *id, uint64_t fence, int64_t lease_ms);
struct idem_op op_get(const char *id);
struct idem_op op_lock(const char *name, const char *owner, int64_t wait_ms);
struct idem_op op_unlock(const char *name, uint64_t fence);

#define assert_verdict(what, wanted)                                           \
    do {                                                                       \
        struct reply got_ = (what);                                            \
        assert_true(got_.done);                                                \
        assert_string_equal(idem_status_name(got_.status), "ok");              \
        assert_string_equal(idem_verdict_name(got_.verdict),                   \
                            idem_verdict_name(wanted));                        \
    } while (0)

#define assert_status(what, wanted)                                            \
    do {                                                                       \
        struct reply got_ = (what);                                            \
        assert_true(got_.done);                                                \
        assert_string_equal(idem_status_name(got_.status),                     \
                            idem_status_name(wanted));                         \
    } while (0)

#endif
