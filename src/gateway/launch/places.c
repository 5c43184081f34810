/*
 * places.c - find the module and nginx, make the folder of a run, and write its
 * files.
 */
#include "launch.h"

#include "../../base/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <netinet/in.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

const char *
launch_own_path(void)
{
    static char path[PATH_MAX];

    if (!path[0] && readlink("/proc/self/exe", path, sizeof(path) - 1) < 0)
        path[0] = '\0';
    return path;
}

/* The first of these paths that exists, relative to the folder of this
 * program. */
static bool
find_beside(const char *const *places, char *path, size_t path_len)
{
    char candidate[PATH_MAX + 64], found[PATH_MAX];
    const char *self = launch_own_path(), *slash = strrchr(self, '/');

    for (; slash && *places; places++) {
        snprintf(candidate, sizeof(candidate), "%.*s/%s", (int)(slash - self),
                 self, *places);
        if (realpath(candidate, found) && strlen(found) < path_len) {
            snprintf(path, path_len, "%s", found);
            return true;
        }
    }
    return false;
}

enum idem_status
gateway_find_module(const struct gateway_config *config, char *path,
                    size_t path_len, struct idem_error *err)
{
    static const char *const places[] = {
        "ngx_http_idem_module.so", "../lib/idem/ngx_http_idem_module.so",
        "../lib/nginx/modules/ngx_http_idem_module.so", NULL};

    if (config->module) {
        snprintf(path, path_len, "%s", config->module);
        if (access(path, R_OK) == 0)
            return IDEM_OK;
        return idem__fail(err, IDEM_ERR_INVALID,
                          "there is no module at %s; give --module PATH", path);
    }
    if (find_beside(places, path, path_len))
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID,
                      "ngx_http_idem_module.so is not beside this program: "
                      "install libnginx-mod-http-idem, or give --module");
}

enum idem_status
gateway_find_script(char *path, size_t path_len, struct idem_error *err)
{
    static const char *const places[] = {"../share/idem/idem.js",
                                         "../clients/js/idem.js", NULL};

    if (find_beside(places, path, path_len))
        return IDEM_OK;
    return idem__fail(err, IDEM_ERR_INVALID,
                      "--page-script: idem.js is not in share/idem beside this "
                      "program; `make install` puts it there");
}

static enum idem_status
find_nginx(struct launch *self, struct idem_error *err)
{
    static const char *const usual[] = {"/usr/sbin/nginx", "/usr/bin/nginx",
                                        "/usr/local/sbin/nginx",
                                        "/usr/local/nginx/sbin/nginx"};
    const char *given = self->config->nginx;

    for (size_t i = 0; !given && i < sizeof(usual) / sizeof(usual[0]); i++) {
        if (access(usual[i], X_OK) == 0)
            given = usual[i];
    }
    if (!given || access(given, X_OK) != 0)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "there is no nginx%s%s: install it, or give --nginx",
                          given ? " at " : "", given ? given : "");
    snprintf(self->nginx_path, sizeof(self->nginx_path), "%s", given);
    return IDEM_OK;
}

/* If root starts nginx, its workers have another user, who must be able to open
 * the engine's socket. */
static void
find_user(struct launch *self)
{
    static const char *const names[] = {"www-data", "nginx", "nobody"};

    if (geteuid() != 0)
        return;
    for (size_t i = 0; i < 3; i++) {
        struct passwd *user = getpwnam(names[i]);
        struct group *group = user ? getgrgid(user->pw_gid) : NULL;

        if (group) {
            snprintf(self->user, sizeof(self->user), "%s", names[i]);
            snprintf(self->group, sizeof(self->group), "%s", group->gr_name);
            return;
        }
    }
    snprintf(self->user, sizeof(self->user), "root");
}

enum idem_status
launch_find(struct launch *self, struct idem_error *err)
{
    enum idem_status status = gateway_find_module(self->config, self->module,
                                                  sizeof(self->module), err);

    find_user(self);
    return status == IDEM_OK ? find_nginx(self, err) : status;
}

/* A folder in which this user can make files; if not, errno says why. */
static bool
is_usable_folder(const char *path)
{
    struct stat info;

    if (stat(path, &info) != 0)
        return false;
    if (!S_ISDIR(info.st_mode))
        errno = ENOTDIR;
    return S_ISDIR(info.st_mode) && access(path, W_OK | X_OK) == 0;
}

enum idem_status
launch_folder_find(const struct gateway_config *config, char path[PATH_MAX],
                   struct idem_error *err)
{
    if (!realpath(config->folder, path) || !is_usable_folder(path))
        return idem__fail(err, IDEM_ERR_INVALID,
                          "folder %s: %s; make a folder that only the "
                          "gateway's user can write (mkdir -p -m 755), or "
                          "leave --folder out for a temporary one",
                          config->folder, strerror(errno));
    if (strlen(path) > 80)
        return idem__fail(err, IDEM_ERR_INVALID,
                          "folder %s: a socket in it needs a path of at most "
                          "80 bytes; choose a shorter one",
                          path);
    return IDEM_OK;
}

enum idem_status
launch_folder_make(struct launch *self, struct idem_error *err)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char figures[PATH_MAX + 16], path[PATH_MAX];
    enum idem_status status;

    if (self->config->folder) {
        status = launch_folder_find(self->config, path, err);
        if (status != IDEM_OK)
            return status;
        memcpy(self->folder, path, strlen(path) + 1);
    } else {
        if (!runtime || strlen(runtime) > 60 || geteuid() == 0 ||
            access(runtime, W_OK) != 0)
            runtime = "/tmp";
        snprintf(self->folder, sizeof(self->folder), "%s/idem-gateway-XXXXXX",
                 runtime);
        if (!mkdtemp(self->folder))
            return idem__fail(err, IDEM_ERR_INVALID, "%s: %s", self->folder,
                              strerror(errno));
        self->own_folder = true;
        /* Workers of another user may enter the folder but not list it. */
        if (self->user[0] && chmod(self->folder, 0711) != 0)
            return idem__fail(err, IDEM_ERR_INVALID, "%s: %s", self->folder,
                              strerror(errno));
    }
    snprintf(self->socket, sizeof(self->socket), "%s/engine.sock",
             self->folder);
    snprintf(self->conf, sizeof(self->conf), "%s/nginx.conf", self->folder);
    /* Drop the counters of an earlier gateway in this folder. */
    snprintf(figures, sizeof(figures), "%s/" GATEWAY_FIGURES, self->folder);
    (void)unlink(figures);
    return IDEM_OK;
}

static int
remove_one(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

void
launch_folder_remove(struct launch *self)
{
    if (self->own_folder && self->folder[0])
        (void)nftw(self->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static enum idem_status
copy_script(struct launch *self, struct idem_error *err)
{
    char from[PATH_MAX], block[4096];
    enum idem_status status = gateway_find_script(from, sizeof(from), err);
    int in, out;
    ssize_t n = -1;

    if (status != IDEM_OK)
        return status;
    snprintf(self->script, sizeof(self->script), "%s/idem.js", self->folder);
    in = open(from, O_RDONLY | O_CLOEXEC);
    out = open(self->script, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (in >= 0 && out >= 0 && fchmod(out, 0644) == 0) {
        while ((n = read(in, block, sizeof(block))) > 0) {
            if (write(out, block, (size_t)n) != n) {
                n = -1;
                break;
            }
        }
    }
    if (n != 0)
        status = idem__fail(err, IDEM_ERR_INVALID, "%s: cannot be copied to %s",
                            from, self->script);
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    return status;
}

enum idem_status
launch_conf_write(struct launch *self, struct idem_error *err)
{
    struct gateway_place place = {.folder = self->folder,
                                  .socket = self->socket,
                                  .module = self->module,
                                  .script = self->script,
                                  .user = self->user[0] ? self->user : NULL,
                                  .secret = true};
    struct idem_buf text;
    enum idem_status status = IDEM_OK;
    int fd;

    if (self->config->page_script)
        status = copy_script(self, err);
    idem_buf_init(&text, 16 * 1024 * 1024);
    if (status == IDEM_OK)
        status = gateway_nginx_conf(self->config, &place, &text, err);
    if (status == IDEM_OK) {
        (void)unlink(self->conf); /* a link there must not be followed */
        fd = open(self->conf, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, text.data, text.len) != (ssize_t)text.len)
            status = idem__fail(err, IDEM_ERR_INVALID, "%s: %s", self->conf,
                                strerror(errno));
        if (fd >= 0)
            close(fd);
    }
    if (status == IDEM_OK && self->config->console)
        status = launch_routes_write(self, err);
    idem_buf_clear(&text);
    return status;
}

/* A port of loopback that is free now; `port` itself unless it is 0. 0:
 * none. */
static int
free_port(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    bool found =
        fd >= 0 &&
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
        bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &len) == 0;

    if (fd >= 0)
        close(fd);
    return found ? ntohs(address.sin_port) : 0;
}

bool
launch_http_choose(struct launch *self)
{
    const char *wanted = self->config->http;
    struct idem__address now;
    int port;

    (void)idem__address_read(self->http, strlen(self->http), &now);
    port = now.port;
    if (wanted) {
        if (strcmp(wanted, "off") != 0)
            snprintf(self->http, sizeof(self->http), "%s", wanted);
        return false;
    }
    if (port > 0 && free_port(port) == port)
        return false;
    port = free_port(0);
    if (port > 0)
        snprintf(self->http, sizeof(self->http), "127.0.0.1:%d", port);
    return port > 0;
}
