/*
 * http_figures.c - help texts for the figures of a store, and figures of this
 * process.
 *
 * A store reports numbers by name. Names that end in _total only grow. A name
 * that is not in the table is still reported; a test then finds it missing in
 * the docs.
 */
#include "http_inner.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static const struct {
    const char *name, *help;
} figures[] = {
    {"etcd_leases_total", "Leases that etcd granted."},
    {"etcd_lost_total", "Requests to etcd whose reply was lost."},
    {"etcd_requests_total", "Requests sent to etcd."},
    {"journal_executing", "Records in the journal that are executing."},
    {"journal_full", "1 while the disk is full for new claims."},
    {"journal_index_bytes", "Memory of the journal's index."},
    {"journal_index_loading",
     "Slices of the journal's index that are not loaded yet."},
    {"journal_live_bytes", "Bytes of segments that records still need."},
    {"journal_moved_bytes_total",
     "Bytes moved so that old segments can be removed."},
    {"journal_poisoned",
     "1 after a write failed: the journal refuses all calls until it has "
     "recovered."},
    {"journal_records", "Records in the journal."},
    {"journal_rereads_total",
     "Times that the journal read its end again after a failed write."},
    {"journal_reserve_bytes",
     "Bytes kept free for requests that are executing."},
    {"journal_segments", "Segment files of the journal."},
    {"journal_used_bytes", "Bytes of all segments."},
    {"memory_records", "Records in memory."},
    {"mysql_connected", "1 while there is a connection."},
    {"mysql_connects_total", "Connections opened."},
    {"mysql_splits_total", "Batches that were sent again in parts."},
    {"postgres_connected", "1 while there is a connection."},
    {"postgres_connects_total", "Connections opened."},
    {"postgres_splits_total", "Batches that were sent again in parts."},
    {"redis_connections", "Open connections."},
    {"redis_connects_total", "Connections opened."},
    {"redis_full",
     "1 while a server refuses writes because its memory is full."},
    {"redis_lost_total", "Writes whose reply was lost."},
    {"redis_may_forget",
     "1 with unsafe=forget: a restart of Redis may forget all records."},
    {"redis_redirected_total",
     "Writes that a cluster redirected to another server."},
    {"redis_refused_total", "Writes that found another revision."},
    {"redis_replicas_required", "Replicas that have to confirm a write."},
    {"redis_swaps_total", "Writes sent."},
    {"redis_wait_short_total", "Writes that too few replicas confirmed."},
    {"sqlite_connected", "1 while the file is open."},
    {"store_batches_cut_total", "Batches sent on several connections."},
    {"store_connections", "Connections opened for large batches."},
    {"zookeeper_lost_total", "Requests whose reply was lost."},
    {"zookeeper_requests_total", "Requests sent to ZooKeeper."},
    {"zookeeper_sessions_total", "Sessions opened."},
    {"zookeeper_swept_total", "Expired records that were removed."},
};

const char *
http_figure_help(const char *name)
{
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        if (strcmp(figures[i].name, name) == 0)
            return figures[i].help;
    return "A figure of the store.";
}

static double
open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    double count = -3; /* ".", ".." and the folder itself */

    if (!folder)
        return 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static double
resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long all, resident = 0;

    if (file && fscanf(file, "%lu %lu", &all, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

void
http_process_figures(int64_t start_us, struct http_process *process)
{
    struct timespec now;
    struct rusage usage = {0};
    struct rlimit limit = {0};

    clock_gettime(CLOCK_REALTIME, &now);
    getrusage(RUSAGE_SELF, &usage);
    getrlimit(RLIMIT_NOFILE, &limit);
    process->cpu_s =
        (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
        (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    process->start_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9 -
                       (double)(idem__mono_us() - start_us) / 1e6;
    process->resident = resident_bytes();
    process->open_files = open_files();
    process->max_files = (double)limit.rlim_cur;
}
