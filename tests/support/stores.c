/*
 * stores.c - which stores a test runs on, and small things tests share.
 */
#include "stores.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void
make_folder(char *path, size_t len)
{
    const char *parent = getenv("TMPDIR");

    snprintf(path, len, "%s/idem-test-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(path)) {
        perror(path);
        abort();
    }
}

void
remove_folder(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        char child[PATH_MAX];
        struct stat st;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (snprintf(child, sizeof(child), "%s/%s", path, entry->d_name) >=
            (int)sizeof(child))
            continue;
        if (lstat(child, &st) == 0 && S_ISDIR(st.st_mode))
            remove_folder(child);
        else
            unlink(child);
    }
    if (dir)
        closedir(dir);
    rmdir(path);
}

bool
store_is_durable(const char *url)
{
    return strncmp(url, "memory:", 7) != 0;
}

uint64_t
number_from_env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

uint64_t
dice_roll(struct dice *dice, uint64_t sides)
{
    uint64_t z = dice->state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % sides;
}

/* In a folder of its own: "journal:" + folder, "sqlite:" + folder + "/db". */
static int
in_folder(int (*each)(const char *url), const char *before, const char *after)
{
    char folder[PATH_MAX - 64], url[PATH_MAX];
    int result;

    make_folder(folder, sizeof(folder));
    snprintf(url, sizeof(url), "%s%s%s", before, folder, after);
    result = each(url);
    remove_folder(folder);
    return result;
}

int
for_each_store(int (*each)(const char *url))
{
    const char *named = getenv("IDEM_TEST_STORE");
    char *list, *url, *rest;
    int sum = 0;

    if (!named || !*named) {
        sum = each("memory:");
        sum += in_folder(each, "journal:", "");
#ifdef IDEM_WITH_SQLITE
        sum += in_folder(each, "sqlite:", "/db");
#endif
        return sum;
    }
    list = strdup(named);
    if (!list)
        abort();
    for (url = strtok_r(list, " ", &rest); url;
         url = strtok_r(NULL, " ", &rest))
        sum += each(url);
    free(list);
    return sum;
}
