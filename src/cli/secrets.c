/*
 * secrets.c - keep passwords out of `ps`, core dumps and the reach of other
 * processes of the same user; use systemd credentials as environment variables.
 */
#include "cli.h"

#include "../base/url.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define CREDENTIAL_MAX 65536
#define KEY_FILE "IDEM_SEAL_KEY"

char **
cli_secrets_hide(int argc, char **argv)
{
    size_t heads = ((size_t)argc + 1) * sizeof(char *), len = heads;
    const char *dumps = getenv("IDEM_CORE_DUMPS");
    char **own, *at;

    if (!dumps || strcmp(dumps, "1") != 0)
        prctl(PR_SET_DUMPABLE, 0);
    for (int i = 0; i < argc; i++)
        len += strlen(argv[i]) + 1;
    own = calloc(1, len);
    at = own ? (char *)own + heads : NULL;
    for (int i = 0; own && i < argc; i++) {
        struct idem_bytes secret = {at, 0};

        own[i] = memcpy(at, argv[i], strlen(argv[i]) + 1);
        at += strlen(at) + 1;
        for (;;) {
            secret = idem__url_secret(own[i],
                                      (const char *)secret.data + secret.len);
            if (!secret.data)
                break;
            memset(argv[i] + ((const char *)secret.data - own[i]), 'x',
                   secret.len);
        }
    }
    return own;
}

/* The text of a file without the line end at its end; NULL: none. */
static char *
read_text(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = fd >= 0 ? malloc(CREDENTIAL_MAX) : NULL;
    ssize_t len = text ? read(fd, text, CREDENTIAL_MAX) : -1;

    if (fd >= 0)
        close(fd);
    while (len > 0 && len < CREDENTIAL_MAX &&
           (text[len - 1] == '\n' || text[len - 1] == '\r'))
        len--;
    if (len <= 0 || len == CREDENTIAL_MAX || memchr(text, 0, (size_t)len)) {
        free(text);
        return NULL;
    }
    text[len] = '\0';
    return text;
}

/* A key stays in its file; the variable is set to the file's name. */
static bool
name_file(const char *folder)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/" KEY_FILE, folder);
    return setenv(KEY_FILE, path, 0) == 0;
}

bool
cli_secrets_read(void)
{
    const char *path = getenv("CREDENTIALS_DIRECTORY");
    DIR *folder = path ? opendir(path) : NULL;
    struct dirent *entry;
    bool good = true;

    while (folder && (entry = readdir(folder))) {
        char *text;

        if (strncmp(entry->d_name, "IDEM_", 5) != 0)
            continue;
        if (strcmp(entry->d_name, KEY_FILE) == 0) {
            good = name_file(path) && good;
            continue;
        }
        text = read_text(dirfd(folder), entry->d_name);
        if (!text || setenv(entry->d_name, text, 0) != 0) {
            fprintf(stderr,
                    "idem: the credential %s/%s is not a text of 1 to %d "
                    "bytes that can be read\n",
                    path, entry->d_name, CREDENTIAL_MAX - 1);
            good = false;
        }
        free(text);
    }
    if (folder)
        closedir(folder);
    return good;
}
