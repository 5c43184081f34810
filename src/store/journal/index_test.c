/*
 * index_test.c - tests the index against a list, and what it takes in memory.
 */
#include "testing.h"

#define MOST 400

struct list {
    struct slot slots[MOST];
    size_t count;
};

static struct journal_index *
new_index(void)
{
    struct journal_index *index = malloc(sizeof(*index));

    idem__index_init(index, idem__new_rev(), UINT64_MAX);
    return index;
}

static void
drop_index(struct journal_index *index)
{
    idem__index_clear(index);
    assert_int_equal(index->bytes, 0);
    free(index);
}

/* Few tags in two shards, so that many slots have the same tag, the same home,
 * or go round from the last cell of the shard to its first. */
static uint64_t
some_tag(uint64_t *seed)
{
    uint64_t random = test_random(seed);
    uint64_t tag = random % 2 << (63 - random / 2 % 2 * 10);

    return tag | (random >> 8) % 60 << (64 - INDEX_TAG_BITS);
}

static void
check_list(const struct journal_index *index, const struct list *list)
{
    size_t executing = 0, idle = 0, seen = 0;

    for (size_t i = 0; i < list->count; i++) {
        const struct slot *want = &list->slots[i];
        struct spot spot;

        assert_true(idem__index_find(index, want->tag, want->at, &spot));
        assert_int_equal(spot.slot.tag, want->tag);
        assert_int_equal(spot.slot.size, want->size);
        assert_int_equal(spot.slot.drop, want->drop);
        executing += slot_executing(want);
        idle += want->drop == DROP_IDLE;
    }
    for (uint32_t shard = 0; shard < INDEX_SHARDS; shard++) {
        for (uint32_t i = 0; i < idem__index_room(index, shard); i++) {
            struct spot spot;

            seen += idem__index_look(index, shard, i, &spot);
        }
    }
    assert_int_equal(seen, list->count);
    assert_int_equal(index->count, list->count);
    assert_int_equal(index->executing, executing);
    assert_int_equal(index->idle, idle);
}

static struct slot
some_slot(uint64_t *seed, uint64_t tag)
{
    uint64_t random = test_random(seed);

    return (struct slot){.tag = tag,
                         .at = 1 + test_random(seed) % (INDEX_AT_END - 1),
                         .size = (uint32_t)(random & 0x7FF),
                         .drop = random >> 11 & 1
                                     ? DROP_CLAIM - (uint32_t)(random >> 12 & 1)
                                     : (uint32_t)(random >> 32) % DROP_CLAIM};
}

static void
change(struct journal_index *index, struct list *list, uint64_t *seed,
       bool grows)
{
    uint64_t random = test_random(seed);
    size_t i = list->count ? (size_t)(random >> 8) % list->count : 0;
    struct slot slot = some_slot(seed, some_tag(seed));
    struct spot spot;

    if (list->count < MOST && random % 8 < (grows ? 5 : 2)) {
        assert_true(idem__index_promise(index, slot.tag));
        idem__index_add(index, &slot);
        list->slots[list->count++] = slot;
    } else if (list->count > 0) {
        slot.tag = list->slots[i].tag;
        assert_true(
            idem__index_find(index, slot.tag, list->slots[i].at, &spot));
        if (random % 8 == 7) {
            idem__index_set(index, &spot, &slot);
            list->slots[i] = slot;
        } else {
            idem__index_remove(index, &spot);
            list->slots[i] = list->slots[--list->count];
        }
    }
    if (random % 50 == 0)
        idem__index_shrink(index,
                           (uint32_t)(slot.tag >> (64 - INDEX_SHARD_BITS)));
}

static void
the_index_finds_what_was_added_and_nothing_else(void **state)
{
    uint64_t seed = test_seed();
    size_t rounds = test_size(4000, 20000, 400000);
    struct list *list = calloc(1, sizeof(*list));
    struct journal_index *index = new_index();

    (void)state;
    for (size_t i = 0; i < rounds; i++) {
        struct spot spot;

        change(index, list, &seed, i / 500 % 2 == 0);
        if (i % 20 == 0)
            check_list(index, list);
        assert_false(idem__index_first(
            index, UINT64_C(77) << 50 | some_tag(&seed), &spot));
    }
    free(list);
    drop_index(index);
}

static void
a_size_is_never_too_long_and_its_room_never_too_short(void **state)
{
    uint64_t most = entry_len((uint32_t)idem__encoded_max(IDEM_RESULT_MAX));

    (void)state;
    for (uint64_t len = ENTRY_HEAD_LEN; len <= most; len += 8 + len / 640 * 8) {
        struct slot slot = {.size = idem__slot_size(len)};

        assert_true(slot.size > 0 && slot.size < 0x800);
        assert_true(slot_len(&slot) <= len && slot_room(&slot) >= len);
        assert_true(slot_room(&slot) - slot_len(&slot) <= len / 64);
        if (len <= 1024)
            assert_int_equal(slot_len(&slot), len);
    }
}

static void
a_drop_time_is_never_early_and_seldom_late(void **state)
{
    static const int64_t times[] = {
        1,     999,           1000,          31999,
        32000, 1700000000000, 1700000031999, INT64_C(4294967000000)};

    (void)state;
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        uint32_t drop = idem__slot_drop(idem__drop_seconds(times[i]), false);
        int64_t ms = (int64_t)drop * DROP_UNIT_S * 1000;

        assert_true(drop > 0 && drop < DROP_IDLE);
        assert_true(ms > times[i] &&
                    ms <= times[i] + DROP_UNIT_S * 1000 + 1000);
    }
    assert_int_equal(idem__slot_drop(idem__drop_seconds(0), false), DROP_NEVER);
    assert_int_equal(idem__slot_drop(idem__drop_seconds(INT64_MAX), false),
                     DROP_NEVER);
    assert_int_equal(idem__slot_drop(5, true), DROP_CLAIM);
}

static void
remove_half(struct journal_index *index)
{
    for (uint32_t shard = 0; shard < INDEX_SHARDS; shard++) {
        uint32_t left = index->shards[shard].used / 2;
        struct spot spot;

        for (uint32_t i = 0; index->shards[shard].used > left;) {
            if (idem__index_look(index, shard, i, &spot))
                idem__index_remove(index, &spot);
            else
                i++;
        }
    }
}

static void
a_record_takes_20_bytes_at_most(void **state)
{
    struct journal_index *index = new_index();
    size_t from = 600000, until = test_size(1200000, 1500000, 20000000);
    uint64_t seed = 3, worst = 0, best = UINT64_MAX;

    (void)state;
    for (size_t n = 1; n <= until; n++) {
        uint64_t tag = test_random(&seed) & index->tag_mask;
        struct slot slot = {.tag = tag, .at = n, .size = 40, .drop = 1};
        uint64_t each;

        assert_true(idem__index_promise(index, tag));
        idem__index_add(index, &slot);
        each = (uint64_t)index->bytes * 100 / n;
        if (n < from)
            continue;
        worst = each > worst ? each : worst;
        best = each < best ? each : best;
    }
    print_message("%.2f to %.2f bytes a record\n", (double)best / 100,
                  (double)worst / 100);
    assert_true(worst <= 2000);
    remove_half(index);
    for (uint32_t shard = 0; shard < INDEX_SHARDS; shard++)
        idem__index_shrink(index, shard);
    print_message("%.2f after half are removed\n",
                  (double)index->bytes / (double)index->count);
    assert_true(index->bytes <= index->count * 20);
    drop_index(index);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_index_finds_what_was_added_and_nothing_else),
        cmocka_unit_test(a_size_is_never_too_long_and_its_room_never_too_short),
        cmocka_unit_test(a_drop_time_is_never_early_and_seldom_late),
        cmocka_unit_test(a_record_takes_20_bytes_at_most),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
