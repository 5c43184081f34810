/*
 * launch_test.c - what a gateway finds before it starts: its module, nginx, a
 * folder, addresses, hosts, and a port for its engine.
 */
#include "launch.h"
#include "nginx_conf.h"

#include "engine_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char base[] = "/tmp/idem-launch-XXXXXX";
static struct launch launch;
static struct gateway_config config;
static struct idem_error err;

static int
reset(void **state)
{
    (void)state;
    memset(&launch, 0, sizeof(launch));
    gateway_config_clear(&config);
    gateway_config_init(&config);
    launch.config = &config;
    memset(&err, 0, sizeof(err));
    return 0;
}

static void
set(const char *name, const char *value)
{
    if (gateway_config_set(&config, NULL, name, value, &err) != IDEM_OK)
        fail_msg("%s", err.text);
}

static void
fails_with(enum idem_status status, const char *text)
{
    assert_int_not_equal(status, IDEM_OK);
    if (!strstr(err.text, text))
        fail_msg("\"%s\", not \"%s\"", err.text, text);
}

static void
the_module_and_nginx_are_found_or_named(void **state)
{
    (void)state;
    fails_with(launch_find(&launch, &err), "is not beside this program");
    set("module", "/nonexistent.so");
    fails_with(launch_find(&launch, &err), "no module at /nonexistent.so");
    set("module", "/proc/self/exe");
    set("nginx", "/nonexistent");
    fails_with(launch_find(&launch, &err), "there is no nginx at /nonexistent");
    set("nginx", "/bin/true");
    assert_int_equal(launch_find(&launch, &err), IDEM_OK);
    assert_string_equal(launch.nginx_path, "/bin/true");
    assert_string_equal(launch.module, "/proc/self/exe");
    assert_int_equal(launch.user[0] != '\0', geteuid() == 0);
}

/* As an ordinary user if this is root, who always gets a folder in /tmp. */
static const char *
folder_of(const char *runtime)
{
    bool root = geteuid() == 0;

    reset(NULL);
    if (runtime)
        setenv("XDG_RUNTIME_DIR", runtime, 1);
    else
        unsetenv("XDG_RUNTIME_DIR");
    assert_true(!root || seteuid(65534) == 0);
    assert_int_equal(launch_folder_make(&launch, &err), IDEM_OK);
    assert_true(launch.own_folder);
    assert_int_equal(access(launch.folder, W_OK), 0);
    launch_folder_remove(&launch);
    assert_int_equal(access(launch.folder, F_OK), -1);
    assert_true(!root || seteuid(0) == 0);
    return launch.folder;
}

static void
a_folder_is_made_where_the_user_may_write(void **state)
{
    char closed[200], longest[200];
    size_t len = strlen(base);

    (void)state;
    assert_memory_equal(folder_of(base), base, len);
    snprintf(longest, sizeof(longest), "%s/%0*d", base, 70, 0);
    snprintf(closed, sizeof(closed), "%s/missing", base);
    assert_memory_equal(folder_of(longest), "/tmp/idem-gateway-", 18);
    assert_memory_equal(folder_of(closed), "/tmp/idem-gateway-", 18);
    assert_memory_equal(folder_of(NULL), "/tmp/idem-gateway-", 18);
}

static void
a_given_folder_must_be_there_and_short(void **state)
{
    char path[200];

    (void)state;
    set("folder", "/nonexistent");
    fails_with(launch_folder_make(&launch, &err),
               "folder /nonexistent: No such file or directory");
    snprintf(path, sizeof(path), "%s/%0*d", base, 70, 0);
    assert_int_equal(mkdir(path, 0700), 0);
    set("folder", path);
    fails_with(launch_folder_make(&launch, &err), "at most 80 bytes");
    assert_int_equal(rmdir(path), 0);
    set("folder", base);
    assert_int_equal(launch_folder_make(&launch, &err), IDEM_OK);
    assert_string_equal(launch.folder, base);
    launch_folder_remove(&launch); /* not its own */
    assert_int_equal(access(base, F_OK), 0);
}

/* A socket on a free port of this address. */
static int
take_port(int family, char address[32])
{
    struct sockaddr_in v4 = {.sin_family = AF_INET,
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,
                              .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool is_v4 = family == AF_INET;
    struct sockaddr *at =
        is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
    socklen_t len = is_v4 ? sizeof(v4) : sizeof(v6);
    int fd = socket(family, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, at, len), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, at, &len), 0);
    snprintf(address, 32, "%s:%d", is_v4 ? "127.0.0.1" : "[::1]",
             ntohs(is_v4 ? v4.sin_port : v6.sin6_port));
    return fd;
}

static void
an_address_in_use_is_named(void **state)
{
    char taken[32], six[32], list[100];
    int fd = take_port(AF_INET, taken), fd6 = take_port(AF_INET6, six);
    static struct gateway_config old;

    (void)state;
    gateway_config_init(&old);
    launch.stops = 0;
    snprintf(list, sizeof(list), "unix:/x,%s", taken);
    set("listen", list);
    assert_int_equal(idem__text_set(&old.listen, "unix:/y,no.invalid:1", &err),
                     IDEM_OK);
    fails_with(launch_listen_check_new(&old, &config, &err), "is in use");
    assert_memory_equal(err.text, taken, strlen(taken));
    assert_int_equal(idem__text_set(&old.listen, list, &err), IDEM_OK);
    assert_int_equal(launch_listen_check_new(&old, &config, &err), IDEM_OK);
    set("listen", six);
    fails_with(launch_listen_check_new(&old, &config, &err), "is in use");
    close(fd);
    close(fd6);
    assert_int_equal(launch_listen_check_new(&old, &config, &err), IDEM_OK);
    set("listen", "no.invalid:1");
    fails_with(launch_listen_check_new(&old, &config, &err),
               "--listen no.invalid:1: the host \"no.invalid\" cannot be");
    launch.stops = 1; /* the reason does not matter any more */
    assert_int_equal(launch_listen_check(&launch, &err), IDEM_OK);
    gateway_config_clear(&old);
}

static void
hosts_are_looked_up(void **state)
{
    (void)state;
    set("upstream", "http://unix:/x");
    assert_int_equal(gateway_config_check(&config, &err), IDEM_OK);
    assert_int_equal(launch_hosts_check(&config, &err), IDEM_OK);
    set("auth-request", "http://no.invalid/");
    fails_with(launch_hosts_check(&config, &err),
               "--auth-request http://no.invalid/: the host \"no.invalid\"");
    set("upstream", "https://no.invalid");
    fails_with(launch_hosts_check(&config, &err),
               "--upstream https://no.invalid: the host \"no.invalid\"");
    set("auth-request", "off");
    set("upstream", "http://127.0.0.1:1");
    assert_int_equal(launch_hosts_check(&config, &err), IDEM_OK);
}

static void
the_engine_keeps_its_port_while_it_is_free(void **state)
{
    char first[sizeof(launch.http)], taken[32];
    int fd;

    (void)state;
    assert_true(launch_http_choose(&launch));
    assert_memory_equal(launch.http, "127.0.0.1:", 10);
    snprintf(first, sizeof(first), "%s", launch.http);
    assert_false(launch_http_choose(&launch));
    assert_string_equal(launch.http, first);
    fd = take_port(AF_INET, taken);
    snprintf(launch.http, sizeof(launch.http), "%s", taken);
    assert_true(launch_http_choose(&launch));
    assert_string_not_equal(launch.http, taken);
    close(fd);

    reset(NULL);
    set("http", "off");
    assert_false(launch_http_choose(&launch));
    assert_string_equal(launch.http, "");
    set("http", "127.0.0.1:77");
    assert_false(launch_http_choose(&launch));
    assert_string_equal(launch.http, "127.0.0.1:77");
}

static void
the_commands_socket_is_a_link_and_only_ours_is_removed(void **state)
{
    char wanted[200], path[PATH_MAX];

    (void)state;
    snprintf(wanted, sizeof(wanted), "%s/commands", base);
    assert_int_equal(
        gateway_socket_take("off", "/engine", path, sizeof(path), &err),
        IDEM_OK);
    assert_string_equal(path, "");
    gateway_socket_drop(path, "/engine");
    assert_int_equal(
        gateway_socket_take(wanted, "/engine", path, sizeof(path), &err),
        IDEM_OK);
    assert_string_equal(path, wanted);
    gateway_socket_drop(path, "/enginf");
    gateway_socket_drop(path, "/engine2");
    assert_int_equal(readlink(wanted, path, sizeof(path)), 7);
    /* Nobody listens there, so another gateway may take it. */
    assert_int_equal(
        gateway_socket_take(wanted, "/other", path, sizeof(path), &err),
        IDEM_OK);
    gateway_socket_drop(wanted, "/engine");
    assert_int_equal(readlink(wanted, path, sizeof(path)), 6);
    gateway_socket_drop(wanted, "/other");
    assert_int_equal(access(wanted, F_OK), -1);

    fails_with(gateway_socket_take("/nonexistent/s", "/engine", path,
                                   sizeof(path), &err),
               "/nonexistent/s: No such file or directory");
    assert_string_equal(path, "");
    fails_with(gateway_socket_take(base, "/engine", path, sizeof(path), &err),
               base);
}

static void
what_ended_a_child_is_told(void **state)
{
    char text[64];

    (void)state;
    assert_string_equal(launch_how_it_ended(9, text), "was killed by signal 9");
    assert_string_equal(launch_how_it_ended(3 << 8, text),
                        "ended with status 3");
}

static int
make_base(void **state)
{
    (void)state;
    return mkdtemp(base) ? chmod(base, 0777) : -1;
}

static int
remove_base(void **state)
{
    reset(state);
    return rmdir(base);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, reset)
    const struct CMUnitTest tests[] = {
        TEST(the_module_and_nginx_are_found_or_named),
        TEST(a_folder_is_made_where_the_user_may_write),
        TEST(a_given_folder_must_be_there_and_short),
        TEST(an_address_in_use_is_named),
        TEST(hosts_are_looked_up),
        TEST(the_engine_keeps_its_port_while_it_is_free),
        TEST(the_commands_socket_is_a_link_and_only_ours_is_removed),
        TEST(what_ended_a_child_is_told),
    };

    return cmocka_run_group_tests(tests, make_base, remove_base);
}
