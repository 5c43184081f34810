/*
 * gateway_config_test.c - what is said of each wrong setting of a gateway, and
 * which unusual ones are right.
 */
#include "gateway.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct gateway_config config;
static char folder[] = "/tmp/idem-gateway-config-XXXXXX";

/* Read a file, check it and make nginx.conf of it; the error is in `err`. */
static enum idem_status
judge(const char *file, struct idem_error *err)
{
    struct gateway_place place = {
        .folder = "/f", .socket = "/f/s", .module = "/m.so"};
    struct idem_buf out;
    enum idem_status status;

    memset(err, 0, sizeof(*err));
    gateway_config_init(&config);
    idem_buf_init(&out, 1 << 20);
    status = gateway_config_text(&config, "f", idem_text(file), err);
    if (status == IDEM_OK)
        status = gateway_config_check(&config, err);
    if (status == IDEM_OK)
        status = gateway_nginx_conf(&config, &place, &out, err);
    idem_buf_clear(&out);
    gateway_config_clear(&config);
    return status;
}

#define SERVICE "upstream = http://a\n"

/* A file, and a part of what is said of it. */
static const char *const wrong[][2] = {
    /* lines */
    {"", "no service is given"},
    {SERVICE "nonsense\n", "f:2: the line is not `name = value`"},
    {SERVICE "[routes /x]\n", "only [route PATH] is allowed"},
    {SERVICE "[route /x\n", "only [route PATH] is allowed"},
    {SERVICE "nosuch = 1\n", "no setting \"nosuch\": idem help gateway"},
    {SERVICE "upstraem = 1\n", "did you mean \"upstream\"?"},
    {SERVICE "[route /]\nlisen = 1\n", "no setting \"lisen\""},
    {SERVICE "[route /x]\nstore = memory:\n",
     "store belongs before the first route"},
    {SERVICE "docs = a\tb\n", "docs: the value contains a control character"},
    {SERVICE "docs = a\x7f\n", "docs: the value contains a control character"},

    /* values of one option */
    {SERVICE "wait = soon\n", "wait: \"soon\""},
    {SERVICE "max-body = big\n", "\"big\" is not a size such as 64k or 1m"},
    {SERVICE "required = maybe\n", "required must be on or off, not \"maybe\""},
    {SERVICE "mode = lax\n", "mode: \"lax\" is not one of strict|loose"},
    {SERVICE "mode = stric\n", "mode: \"stric\" is not one of"},
    {SERVICE "key =\n", "key: the value is empty"},
    {SERVICE "docs =  \n", "docs: the value is empty"},
    {SERVICE "key = Idempotency-Key\n", "key: \"Idempotency-Key\""},
    {SERVICE "key = $http_a $http_x-request-id\n",
     "f:2: key: \"$http_x-request-id\": nginx ends the name of a variable"},
    {SERVICE "scope = $http_a-b\n", "did you mean \"$http_a_b\"?"},
    {SERVICE "key = $http_a const:x\n", "const: is for scopes only"},
    {SERVICE "token = content\n", "token: \"content\""},
    {SERVICE "scope = const:$http_x\n", "const: takes a fixed text"},
    {SERVICE "scope = user\n", "scope: \"user\""},
    {SERVICE "duplicate = replace\n",
     "\"replace\" is not replay, refuse or answer STATUS TEXT"},
    {SERVICE "fingerprint = xml\n", "\"xml\" is not body, json [PATH ...]"},
    {SERVICE "inject-token = a<b\n", "\"a<b\" is not the name of a field"},
    {SERVICE "keep-header = a:\n", "\"a:\" is not the name of a header"},
    {SERVICE "credential = x y(\n", "\"y(\" is not the name of a header"},
    {SERVICE "replayed-header = \" \"\n", "is not the name of a header"},
    {SERVICE "methods = POST FETCH\n", "\"FETCH\" is not a method"},
    {SERVICE "methods = APOSTROPHE_POST_X\n", "is not a method"},
    {SERVICE "release = 500 600\n", "\"600\" is not a status from 200 to 599"},
    {SERVICE "release = 500-499\n", "\"500-499\" is not a status"},
    {SERVICE "release = 199\n", "\"199\" is not a status"},
    {SERVICE "release = 500-599x\n", "\"500-599x\" is not a status"},
    {SERVICE "release = x\n", "\"x\" is not a status"},
    {SERVICE "release = 50x\n", "\"50x\" is not a status"},
    {SERVICE "release = 503,425\n",
     "\"503,425\" is not a status from 200 to 599, or a range: 500-599; "
     "separate several with spaces: '503 425'"},
    {SERVICE "release = 503, 425 ;429\n", "spaces: '503 425 429'"},
    {SERVICE "methods = POST,PUT\n",
     "\"POST,PUT\" is not a method such as POST; separate several with spaces: "
     "'POST PUT'"},
    {SERVICE "keep-header = a,b\n", "spaces: 'a b'"},
    {SERVICE "ttl = 7\n", "ttl: \"7\" has no unit: 7h or 7d?"},
    {SERVICE "auth-request = a\n", "auth-request: \"a\" is neither a URL"},
    {SERVICE "workers = few\n", "workers: \"few\" is not a number"},
    {SERVICE "workers = 1025\n", "workers: at most 1024 are allowed"},
    {SERVICE "drain-timeout = long\n", "drain-timeout: \"long\""},
    {SERVICE "console = perhaps\n",
     "console must be on or off, not \"perhaps\""},
    {SERVICE "token-rate = fast\n", "token-rate: \"fast\" is not a rate"},
    {SERVICE "token-rate = 5r/h\n", "\"5r/h\" is not a rate"},
    {SERVICE "token-rate = 0r/s\n", "\"0r/s\" is not a rate"},
    {SERVICE "status-rate = 1234567r/s\n", "status-rate: \"1234567r/s\""},

    /* addresses */
    {SERVICE "listen = nowhere\n", "\"nowhere\" is not an address"},
    {SERVICE "listen = a:0\n", "listen: \"a:0\" is not an address"},
    {SERVICE "listen = a:1,a:2,a:1\n", "listen: \"a:1\" is given twice"},
    {SERVICE "listen = :1, 127.0.0.1:1\n", "\"127.0.0.1:1\" is given twice"},
    {SERVICE "listen = a:1,\n", "listen: \"\" is not an address"},
    {SERVICE "listen = a:1, 30081\n",
     "listen: \"30081\" is not an address: write 127.0.0.1:30081, or *:30081 "
     "for all interfaces"},
    {SERVICE "listen = :\n", "is not an address: give HOST:PORT"},
    {SERVICE "listen = :x\n", "is not an address: give HOST:PORT"},
    {SERVICE "listen = 65536\n", "\"65536\" is not an address: give HOST"},
    {SERVICE "listen = a b:1\n", "\"a b:1\" is not an address"},
    {SERVICE "listen = unix:\n", "listen: \"unix:\" is not an address"},
    {"upstream = ftp://a\n", "does not begin with http:// or https://"},
    {"upstream = http://\n", "\"http://\" names no host"},
    {"upstream = http://a;b\n", "names no host"},
    {"upstream = http://[::1\n", "names no host"},
    {"upstream = http://a/x;y\n", "the path of the upstream"},
    {"upstream = http://127.0.0.1:8080\n", "gateway itself"},
    {"upstream = http://LocalHost:8080/x\n", "gateway itself"},
    {"upstream = http://a:1\nlisten = [::1]:7,a:1\n", "gateway itself"},
    {"upstream = https://a\nlisten = A:443\n", "gateway itself"},
    {"upstream = http://localhost:7\nlisten = [::1]:7\n", "gateway itself"},
    {"upstream = http://[::1]:7\nlisten = [::]:7\n", "gateway itself"},
    {"upstream = http://localhost:7\nlisten = :7\n", "gateway itself"},
    {"upstream = http://localhost:7\nlisten = 0.0.0.0:7\n", "gateway itself"},
    {"upstream = http://localhost\nlisten = *:80\n", "gateway itself"},
    {"upstream = http://unix:/s\nlisten = unix:/s\n", "gateway itself"},
    {SERVICE "[route /x]\nupstream = http://127.0.0.1:8080\n",
     "the route /x: the gateway itself listens on"},

    /* together */
    {"[route /x]\n", "the route /x has no service"},
    {SERVICE "[route x]\n", ":2: the route \"x\" does not begin with a /"},
    {SERVICE "[route = x]\n", ":2: the route \"x\" does not begin with a /"},
    {SERVICE "[route /x]\n[route /x]\n", ":3: the route /x is given twice"},
    {SERVICE "[route /x]\n[route /x]", ":3: the route /x is given twice"},
    {SERVICE "[route /x]\n[route /x]\n[route /y]\n", ":3: the route /x is"},
    {SERVICE "[route /x]\n[route /x]\n[route /y]", ":3: the route /x is"},
    {SERVICE "[route /x]\nhost = a\n[route /x]\nhost = a\n",
     ":4: the route /x is given twice"},
    {SERVICE "[route /x]\nhost = a\n[route /x]\nhost = a\n[route /x]\n",
     ":4: the route /x is given twice"},
    {"upstream = http://a/b\n[route /x$y]\n", "the route /x$y has a character"},
    {SERVICE "tls-cert = x\n", "TLS needs both a certificate and its key"},
    {SERVICE "tls-key = x\n", "TLS needs both a certificate and its key"},
    {SERVICE "token-path = x\n", "the token path does not begin with a /"},
    {SERVICE "policy-path = x\n", "the policy path does not begin with a /"},
    {SERVICE "problem-base = https://a/b\n", "problem-base: \"https://a/b\""},
    {SERVICE "console = on\n", "the console shows requests and results"},
    {SERVICE "console = on\ncredentials = c\nhttp = none\n",
     "the console needs HTTP"},
    {SERVICE "key = content\n", "--key content needs --ttl TIME"},
    {SERVICE "store = redis://a?unsafe=unseen,forget\n",
     "the route / is strict, which a store with unsafe=forget"},
    {SERVICE "store = redis://a?unsafe=forget\nmode = strict\n",
     "the route / is strict, which a store with unsafe=forget"},
    {SERVICE "lease = 99ms\n", ":2: lease of 99ms is out of range: give 100ms"},
    {SERVICE "lease = 8d\n", "out of range: give 100ms to 7d"},
    {SERVICE "wait = 61m\n", "wait of 61m is out of range: give 0 to 1h"},
    {SERVICE "token-ttl = 0\n", "token-ttl of 0 is out of range: give 1ms"},
    {SERVICE "fail-open = on\n", "--fail-open needs --mode loose"},
    {SERVICE "fail-open = on\nmode = strict\ngated = on\n",
     "--fail-open needs --mode loose"},
    {"upstream = https://a\nverify = on\n", "--verify needs --ca FILE"},
    {SERVICE "verify = on\nauth-request = https://a\n",
     "--verify needs --ca FILE"},

    /* another engine */
    {SERVICE "engine = redis://a\n",
     "\"redis://a\" is not the URL of a server"},
    {SERVICE "engine = idem://\n", "idem"},
    {SERVICE "engine = idem://a:1\nstore = memory:\n",
     "--store and --engine exclude each other: with --engine, the records are "
     "where that server keeps them"},
    {SERVICE "engine = idem://a:1\nseal-key = x\n",
     "--seal-key and --engine exclude"},
    {SERVICE "engine = idem://a:1\nhttp = 1\n", "--http and --engine exclude"},
    {SERVICE "engine = idem://a:1\ncredentials = x\n",
     "--credentials and --engine"},
    {SERVICE "engine = idem://a:1\nsocket = x\n",
     "--socket and --engine exclude"},
};

static void
a_wrong_setting_is_named(void **state)
{
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        enum idem_status status = judge(wrong[i][0], &err);

        if (status == IDEM_OK || !err.text[0] || !strstr(err.text, wrong[i][1]))
            fail_msg("%s: \"%s\", not \"%s\"", wrong[i][0], err.text,
                     wrong[i][1]);
    }
}

static const char *const right[] = {
    "upstream = http://unix:/run/shop.sock\n",
    "upstream = http://[::1]\n",
    "upstream = https://[::1]:1/x\n",
    "upstream = http://127.0.0.1:8081\n",
    "upstream = http://127.0.0.2:8080\n",
    "upstream = http://[::1]:8080\n",
    "upstream = http://a:7\nlisten = :7\n",
    "upstream = http://[::1]:7\nlisten = *:7 , 127.0.0.1:7\n",
    "upstream = http://127.0.0.1:7\nlisten = [::]:7\n",
    "upstream = http://unix:/s\nlisten = unix:/t\n",
    SERVICE
    "  \t\n# a comment\n\tlisten = unix:/s,[::1]:1,localhost:2,:3 \t\r\n",
    SERVICE "key = off\ntoken = off\nfingerprint = off\nrelease = off\n",
    SERVICE "fingerprint = json a.b anything\nduplicate = answer 200 x\n",
    SERVICE "methods = get Propfind UNLOCK\n",
    SERVICE "release = 425 429 500-599\nkeep-header = set-cookie\n",
    SERVICE "auth-request = off\n[route /x]\nauth-request = http://a\n",
    SERVICE "fail-open = on\nmode = loose\n",
    SERVICE "fail-open = on\ngated = off\n",
    SERVICE "fail-open = off\nlease = 7d\nwait = 1h\n",
    SERVICE "fail-open = on\ngated = on\nmode = loose\n",
    SERVICE "verify = on\n",
    SERVICE "verify = off\nauth-request = https://a\n",
    "upstream = https://a\nverify = yes\nca = /c\n",
    SERVICE "key = content\nttl = 10s\n",
    SERVICE "store = redis://a?unsafe=unseen\n",
    SERVICE "store = redis://a?unsafe=forget\nmode = loose\n",
    SERVICE "workers = 1024\ntoken-rate = 1r/s\nstatus-rate = 999999r/m\n",
    SERVICE "console = on\ncredentials = c\nhttp = 127.0.0.1:1\n",
    SERVICE "engine = idem://a:1\nhttp = off\nsocket = none\n",
    SERVICE "[route /x]\nhost = a\n[route /x]\nhost = b\n[route /x]\n",
    SERVICE "forwarded = 1\nlog-keys = no\nconsole = false\n",
};

static void
an_unusual_setting_is_right(void **state)
{
    struct idem_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++)
        if (judge(right[i], &err) != IDEM_OK)
            fail_msg("%s: %s", right[i], err.text);
}

static void
as_many_routes_as_there_is_room_for(void **state)
{
    struct idem_error err;
    struct idem_buf file;

    (void)state;
    idem_buf_init(&file, 1 << 20);
    assert_true(idem_buf_add_text(&file, SERVICE));
    for (int i = 0; i < GATEWAY_ROUTES_MAX; i++)
        assert_true(idem_buf_printf(&file, "[route /%d]\n", i));
    assert_int_equal(judge((char *)file.data, &err), IDEM_OK);
    assert_true(idem_buf_printf(&file, "[route /more]\n"));
    assert_int_equal(judge((char *)file.data, &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "more than"));
    idem_buf_clear(&file);
}

/* The words of a value are cut, and never written behind their room. */
static void
a_word_that_is_too_long_is_cut(void **state)
{
    char text[2 * GATEWAY_WORD_MAX], word[GATEWAY_WORD_MAX];
    const char *rest = text;

    (void)state;
    memset(text, 'x', sizeof(text));
    memcpy(text + sizeof(text) - 3, " y", 3);
    assert_true(gateway_word_next(&rest, word));
    assert_int_equal(strlen(word), GATEWAY_WORD_MAX - 1);
    assert_true(gateway_word_next(&rest, word));
    assert_string_equal(word, "y");
    assert_false(gateway_word_next(&rest, word));
}

static enum idem_status
read_file(const char *path, struct idem_error *err)
{
    enum idem_status status;

    memset(err, 0, sizeof(*err));
    gateway_config_init(&config);
    status = gateway_config_file(&config, path, err);
    gateway_config_clear(&config);
    return status;
}

static void
a_file_that_cannot_be_read_is_named(void **state)
{
    struct idem_error err;
    FILE *out;

    (void)state;
    assert_int_equal(read_file("missing", &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "missing: No such file or directory"));
    assert_int_equal(read_file(folder, &err), IDEM_ERR_INVALID);
    assert_non_null(strstr(err.text, "Is a directory"));

    out = fopen("file", "w");
    assert_non_null(out);
    for (int i = 0; i < 1024 * 1024; i++)
        fputc('\n', out);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(truncate("file", 1024 * 1024 - 4096), 0);
    assert_int_equal(read_file("file", &err), IDEM_OK);
    assert_int_equal(truncate("file", 1024 * 1024 + 1), 0);
    assert_int_equal(read_file("file", &err), IDEM_ERR_INVALID);
    assert_string_equal(err.text, "file: longer than 1 MiB");
}

static void
credentials_of_the_environment_count(void **state)
{
    struct idem_error err;
    const char *const file = SERVICE "console = on\n";

    (void)state;
    assert_int_equal(setenv("IDEM_CREDENTIALS", "", 1), 0);
    assert_int_equal(judge(file, &err), IDEM_ERR_INVALID);
    assert_int_equal(setenv("IDEM_CREDENTIALS", "/c", 1), 0);
    assert_int_equal(judge(file, &err), IDEM_OK);
    assert_int_equal(unsetenv("IDEM_CREDENTIALS"), 0);
    assert_int_equal(judge(file, &err), IDEM_ERR_INVALID);
}

/* Paths are of the folder in which the gateway was started. */
static void
a_relative_path_needs_a_folder(void **state)
{
    struct idem_error err;

    (void)state;
    assert_int_equal(mkdir("gone", 0700), 0);
    assert_int_equal(chdir("gone"), 0);
    assert_int_equal(judge(SERVICE "access-log = log\n", &err), IDEM_OK);
    assert_int_equal(rmdir("../gone"), 0);
    assert_int_equal(judge(SERVICE "access-log = log\n", &err),
                     IDEM_ERR_INVALID);
    assert_string_equal(err.text, "log: No such file or directory");
    assert_int_equal(judge(SERVICE "access-log = /log\n", &err), IDEM_OK);
    assert_int_equal(chdir(folder), 0);
}

static int
make_folder(void **state)
{
    (void)state;
    unsetenv("IDEM_CREDENTIALS");
    return mkdtemp(folder) ? chdir(folder) : -1;
}

static int
remove_folder(void **state)
{
    (void)state;
    (void)unlink("file");
    return chdir("/") == 0 ? rmdir(folder) : -1;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_setting_is_named),
        cmocka_unit_test(an_unusual_setting_is_right),
        cmocka_unit_test(as_many_routes_as_there_is_room_for),
        cmocka_unit_test(a_word_that_is_too_long_is_cut),
        cmocka_unit_test(a_file_that_cannot_be_read_is_named),
        cmocka_unit_test(credentials_of_the_environment_count),
        cmocka_unit_test(a_relative_path_needs_a_folder),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
