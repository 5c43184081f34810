/*
 * consumers.c - see consumers.h.
 *
 * The files are Prometheus text. Other programs may write to the folder, too,
 * so at most FILE_MAX bytes of a file are read, and lines that `idem consume`
 * does not write are skipped.
 */
#include "consumers.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_MAX 65536
#define LOOKED_MAX 10000 /* files in the folder, from any program */
#define PREFIX "idem_consume_"

/* idem_consume_messages_total{scope="orders/mail",what="handled"} 7 */
static void
read_line(char *line, json_t *consumer)
{
    char name[64], scope[1024], what[64] = "";
    unsigned long long value;

    if (sscanf(line,
               PREFIX "messages_total{scope=\"%1023[^\"]\",what=\"%63[a-z_]\"} "
                      "%llu",
               scope, what, &value) == 3)
        json_object_set_new(consumer, what, json_integer((json_int_t)value));
    else if (sscanf(line, PREFIX "%63[a-z_]{scope=\"%1023[^\"]\"} %llu", name,
                    scope, &value) == 3)
        json_object_set_new(consumer, name, json_integer((json_int_t)value));
    else
        return;
    json_object_set_new(consumer, "scope", json_string(scope));
}

/* NULL: `idem consume` does not write such a line. */
static json_t *
read_text(char *text, const struct stat *stat)
{
    json_t *consumer = json_object();
    char *rest = NULL;
    struct timespec now;

    for (char *line = strtok_r(text, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest))
        read_line(line, consumer);
    if (json_object_size(consumer) == 0) {
        json_decref(consumer);
        return NULL;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    json_object_set_new(
        consumer, "silent_s",
        json_integer((json_int_t)(now.tv_sec - stat->st_mtim.tv_sec)));
    return consumer;
}

static json_t *
read_file(int dir, const char *name)
{
    char text[FILE_MAX + 1];
    struct stat stat;
    json_t *consumer = NULL;
    ssize_t len = -1;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0)
        return NULL;
    if (fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode))
        len = read(fd, text, FILE_MAX);
    close(fd);
    if (len > 0) {
        text[len] = '\0';
        consumer = read_text(text, &stat);
    }
    if (consumer)
        json_object_set_new(consumer, "file", json_string(name));
    return consumer;
}

static int
is_metrics(const struct dirent *entry)
{
    size_t len = strlen(entry->d_name);

    return entry->d_name[0] != '.' && len > 5 &&
           strcmp(entry->d_name + len - 5, ".prom") == 0;
}

json_t *
consumers_list(const char *dir)
{
    json_t *all = json_array();
    DIR *folder = dir ? opendir(dir) : NULL;
    const struct dirent *entry;
    size_t looked = 0;

    while (all && folder && json_array_size(all) < CONSUMERS_MAX &&
           looked++ < LOOKED_MAX && (entry = readdir(folder))) {
        json_t *consumer =
            is_metrics(entry) ? read_file(dirfd(folder), entry->d_name) : NULL;

        if (consumer)
            json_array_append_new(all, consumer);
    }
    if (folder)
        closedir(folder);
    return all;
}
