/*
 * cmd_backup.c - idem backup and idem restore: copy a journal.
 */
#include "cli.h"

#include "../store/journal/copy.h"
#include "../store/journal/journal_check.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#define MIB 1048576

static bool check;

static const struct cli_option options[] = {
    {"check", 'c', CLI_FLAG, &check, NULL,
     "read every byte of the copy again afterwards"},
    {0},
};

static void
show_progress(void *arg, const struct journal_copied *now)
{
    (void)arg;
    cli_progress("%" PRIu64 " segments, %" PRIu64 " MiB copied", now->segments,
                 now->copied_bytes / MIB);
}

/* The folder of "journal:DIR" or "DIR"; NULL after an error, which was
 * printed. */
static char *
folder_of(char *text)
{
    bool other = strstr(text, "://") || strncmp(text, "sqlite:", 7) == 0 ||
                 strncmp(text, "memory:", 7) == 0;

    if (strncmp(text, "journal:", 8) == 0) {
        text += 8;
        other = false;
    }
    if (other || !*text || strchr(text, '?')) {
        cli_usage_error("give the folder of a journal: journal:DIR or DIR. For "
                        "other stores use the backup of the database; idem "
                        "store copy copies records between stores");
        return NULL;
    }
    return text;
}

static int
check_copy(const char *dir, struct journal_report *report)
{
    struct idem_error err = {0};
    enum idem_status status =
        idem__journal_check(dir, NULL, NULL, NULL, NULL, report, &err);

    if (status != IDEM_OK)
        return cli_fail(&err);
    if (report->damaged)
        return cli_error(IDEM_ERR_CORRUPT,
                         "%s: %" PRIu64 " damaged places: run idem journal "
                         "check %s",
                         dir, report->damaged, dir);
    return CLI_OK;
}

static int
copy(const char *from, const char *to, bool fresh)
{
    struct journal_copied copied;
    struct journal_report report = {0};
    struct idem_error err = {0};
    char time[CLI_TIME_LEN];
    enum idem_status status =
        idem__journal_copy(from, to, fresh, show_progress, NULL, &copied, &err);
    int code;

    cli_progress(NULL);
    if (status != IDEM_OK)
        return cli_fail(&err);
    code = check ? check_copy(to, &report) : CLI_OK;
    if (code != CLI_OK)
        return code;
    cli_time(copied.time_us / 1000, time);
    if (cli_json) {
        json_t *told =
            json_pack("{s:s, s:I, s:I, s:s}", "folder", to, "segments",
                      (json_int_t)copied.segments, "copied_bytes",
                      (json_int_t)copied.copied_bytes, "time", time);

        if (check)
            json_object_set_new(told, "records",
                                json_integer((json_int_t)report.live));
        cli_json_print(told);
        return CLI_OK;
    }
    printf("%s: %" PRIu64 " segments, %" PRIu64 " bytes copied; the newest "
           "change in it is of %s\n",
           to, copied.segments, copied.copied_bytes, time);
    if (check)
        printf("checked: %" PRIu64 " records, no damage\n", report.live);
    return CLI_OK;
}

/* Copy args[0] to args[1], one of which is the journal. A backup is updated; a
 * journal is created. */
static int
run(const struct cli_syntax *syntax, size_t journal, int argc, char **argv)
{
    struct stat st;
    char **args;
    int code = cli_parse(syntax, argc, argv, &args, NULL);

    if (code >= 0)
        return code;
    args[journal] = folder_of(args[journal]);
    if (args[journal] && journal == 1 && stat(args[0], &st) != 0 &&
        errno == ENOENT)
        return cli_error(IDEM_ERR_INVALID,
                         "there is no backup at %.200s: name the folder that "
                         "idem backup wrote",
                         args[0]);
    return args[journal] ? copy(args[0], args[1], journal == 1) : CLI_USAGE;
}

int
cli_backup(int argc, char **argv)
{
    static const struct cli_syntax syntax = {
        .usage = "backup JOURNAL TO [--check]",
        .about = "Copy a journal (journal:DIR or DIR) into the folder TO while "
                 "its server runs. The copy has everything that was "
                 "acknowledged before it began. The command checks every entry "
                 "while it copies. If TO has an earlier backup, it copies only "
                 "new data. An interrupted backup cannot be used until you run "
                 "the command again, so use two folders in turn.",
        .options = options,
        .min_args = 2,
        .max_args = 2,
    };

    return run(&syntax, 0, argc, argv);
}

int
cli_restore(int argc, char **argv)
{
    static const struct cli_syntax syntax = {
        .usage = "restore BACKUP JOURNAL [--check]",
        .about = "Make a journal (journal:DIR or DIR) from a backup; its "
                 "folder must be empty or missing. The new journal does not "
                 "know the requests that came after the backup: if a client "
                 "repeats one of them, it runs again, even in strict mode. "
                 "Settle such keys before you let clients in.",
        .options = options,
        .min_args = 2,
        .max_args = 2,
    };

    return run(&syntax, 1, argc, argv);
}
