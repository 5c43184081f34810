/*
 * on_doubt.c - report new doubts: run a command with the text as its standard
 * input, or POST the text to a URL.
 */
#include "doubts.h"

#include "../../base/spawn.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 30000
#define STEP_MS 200

static size_t
drop(char *bytes, size_t size, size_t count, void *arg)
{
    (void)bytes;
    (void)arg;
    return size * count;
}

static bool
post(const char *url, const char *text, char *why, size_t why_len)
{
    CURL *curl = curl_easy_init();
    struct curl_slist *headers =
        curl_slist_append(NULL, "Content-Type: application/json");
    long status = 0;
    CURLcode code = CURLE_OUT_OF_MEMORY;

    if (curl && headers) {
        curl_easy_setopt(curl, CURLOPT_URL, url);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, text);
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, drop);
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)PATIENCE_MS / 3);
        code = curl_easy_perform(curl);
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    }
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    if (code != CURLE_OK)
        snprintf(why, why_len, "%s", curl_easy_strerror(code));
    else
        snprintf(why, why_len, "it returned status %ld", status);
    return code == CURLE_OK && status >= 200 && status < 300;
}

/* A file with this text, positioned at its start. */
static int
file_of(const char *text)
{
    int fd = memfd_create("doubt", MFD_CLOEXEC);
    size_t len = strlen(text);

    if (fd >= 0 &&
        (write(fd, text, len) != (ssize_t)len || lseek(fd, 0, SEEK_SET) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static bool
run(const char *command, const char *text, const atomic_bool *over, char *why,
    size_t why_len)
{
    char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)command, NULL};
    int in = file_of(text), status = 0, error;
    struct idem_spawn how = {.argv = argv,
                             .in = in,
                             .out = STDERR_FILENO,
                             .err = -1,
                             .own_group = true};
    struct idem_child child;

    error = in < 0 ? errno : idem__spawn(&how, &child);
    if (in >= 0)
        close(in);
    if (error) {
        snprintf(why, why_len, "%s", strerror(error));
        return false;
    }
    for (int waited = 0; !idem__child_wait(&child, STEP_MS, &status);
         waited += STEP_MS) {
        if (waited < PATIENCE_MS && !atomic_load(over))
            continue;
        kill(-child.pid, SIGKILL);
        idem__child_wait(&child, -1, &status);
        break;
    }
    if (WIFEXITED(status))
        snprintf(why, why_len, "it ended with exit status %d",
                 WEXITSTATUS(status));
    else
        snprintf(why, why_len, "it was ended by signal %d", WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool
on_doubt_tell(const char *target, const char *text, const atomic_bool *over,
              char *why, size_t why_len)
{
    if (strncmp(target, "http://", 7) == 0 ||
        strncmp(target, "https://", 8) == 0)
        return post(target, text, why, why_len);
    return run(target, text, over, why, why_len);
}
