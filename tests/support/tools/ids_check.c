/*
 * ids_check.c - are the ids in these files, one a line, all different, and do
 * those of each file increase?
 *
 *   ids_check any|increasing FILE...     prints how many there are
 *
 * A last line that was not written to its end is left out. UUIDs are compared
 * by a 64-bit hash: one false alarm in thousands of runs.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static uint64_t *keys;
static size_t count, room;

static void
die(const char *what, const char *which)
{
    printf("%s: %s\n", what, which);
    exit(1);
}

static void
add(const char *line, size_t len)
{
    if (count == room) {
        room = room ? room * 2 : 1 << 20;
        keys = realloc(keys, room * sizeof(*keys));
        if (!keys)
            die("out of memory", "");
    }
    keys[count++] = memchr(line, '-', len) ? XXH3_64bits(line, len)
                                           : strtoull(line, NULL, 10);
}

static void
read_file(const char *name, int increasing)
{
    FILE *in = fopen(name, "r");
    char lines[2][64] = {"", ""};

    if (!in)
        die("cannot read", name);
    for (int at = 0; fgets(lines[at], sizeof(lines[at]), in); at = !at) {
        char *line = lines[at], *last = lines[!at], *end = strchr(line, '\n');
        size_t len, last_len = strlen(last);

        if (!end)
            break;
        *end = 0;
        len = (size_t)(end - line);
        if (increasing &&
            (len < last_len || (len == last_len && strcmp(line, last) <= 0)))
            die("not increasing", line);
        add(line, len);
    }
    fclose(in);
}

/* Radix sort, 16 bits a pass. */
static void
sort(void)
{
    uint64_t *other = malloc((count + 1) * sizeof(*other));
    static size_t starts[65537];

    if (!other)
        die("out of memory", "");
    for (int shift = 0; shift < 64; shift += 16) {
        uint64_t *from = keys;

        memset(starts, 0, sizeof(starts));
        for (size_t i = 0; i < count; i++)
            starts[(from[i] >> shift & 65535) + 1]++;
        for (size_t i = 1; i < 65537; i++)
            starts[i] += starts[i - 1];
        for (size_t i = 0; i < count; i++)
            other[starts[from[i] >> shift & 65535]++] = from[i];
        keys = other;
        other = from;
    }
    free(other);
}

int
main(int argc, char **argv)
{
    for (int i = 2; i < argc; i++)
        read_file(argv[i], strcmp(argv[1], "increasing") == 0);
    sort();
    for (size_t i = 1; i < count; i++) {
        if (keys[i] == keys[i - 1]) {
            char text[32];

            snprintf(text, sizeof(text), "%llu", (unsigned long long)keys[i]);
            die("twice", text);
        }
    }
    printf("%zu\n", count);
    free(keys);
    return 0;
}
