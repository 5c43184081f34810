"""The C API from outside: C++, the examples on the pages and in the headers, and what a program may rely on."""
import glob
import os
import re
import shutil
import subprocess

import pytest

from lib import ROOT, folder

HEADERS = ["record", "engine", "lock", "token", "id", "consume", "sql"]


def run(*args, **kwargs):
    done = subprocess.run(args, cwd=ROOT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=120, **kwargs)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_cpp_program_uses_the_library():
    with folder() as tmp:
        program = os.path.join(tmp, "api")
        run("g++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Iinclude",
            "tests/c/api.cpp", "-o", program, "-Lbuild", "-lidem",
            "-Wl,-rpath," + os.path.join(ROOT, "build"))
        assert run(program).split() == ["ran", "replayed"]


def test_every_public_header_stands_alone_in_c_and_cpp():
    headers = sorted(glob.glob(os.path.join(ROOT, "include/idem/*.h")))
    assert len(headers) >= 3
    for header in headers:
        name = "idem/" + os.path.basename(header)
        for compiler in (["gcc", "-std=c11", "-xc"], ["g++", "-std=c++17", "-xc++"]):
            run(*compiler, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-Iinclude",
                "-", input="#include <%s>\n#include <%s>\n" % (name, name))


def test_the_example_runs_once():
    lines = open(os.path.join(ROOT, "examples/once.c")).read().splitlines()
    assert len(lines) <= 50
    with folder() as tmp:
        once = os.path.join(ROOT, "build/examples/once")
        where = os.path.join(tmp, "shop")
        assert run(once, where, "order-7") == "ran: 1 sandwich for order-7\n"
        assert run(once, where, "order-7") == "replayed: 1 sandwich for order-7\n"
        assert run(once, where, "order-8") == "ran: 1 sandwich for order-8\n"
        idem = os.path.join(ROOT, "build/idem")
        run(idem, "begin", "shop", "claimed", "--store", "journal:" + where)
        busy = subprocess.run([once, where, "claimed"], capture_output=True, text=True, timeout=60)
        assert (busy.returncode, busy.stdout, busy.stderr) == (1, "", "once: claimed: busy\n")
        refused = subprocess.run([once, "/proc/nowhere", "x"], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, timeout=60)
        assert refused.returncode == 1
        assert refused.stderr.startswith("once: ")


def test_what_is_written_once_stays_so():
    """Commands are started by base/spawn alone; the third of a lease is a third in engine/lease.h alone; a port is checked in
    base/address.c alone."""
    ways = {"src/base/spawn.c": r"\b(v?fork|execv\w*|execl\w*|posix_spawnp?|popen|system)\(",
            "src/base/address.c": r"\b65535\b",
            "src/engine/lease.h": r"\b(lease|length)(_[mu]s)?( \* 1000)? / 3\b"}
    files = [f for end in "ch" for f in glob.glob(os.path.join(ROOT, "src/**/*." + end), recursive=True) if not f.endswith(("_test.c", "_fuzz.c"))]
    for home, way in ways.items():
        found = set()
        for path in files:
            with open(path) as f:
                code = re.sub(r"/\*.*?\*/|//[^\n]*|\"[^\"\n]*\"", "", f.read(), flags=re.S)
            if re.search(way, code):
                found.add(os.path.relpath(path, ROOT))
        assert found == {home}, found


def test_only_the_wire_writes_the_redis_protocol():
    """No other file of the server, the clients or the module has the text of a command or a reply in it."""
    frame = r'"[^"\n]*[*$](?:\d+|%\w+)\\r\\n'
    files = [f for end in "ch" for f in glob.glob(os.path.join(ROOT, "src/**/*." + end), recursive=True) if not f.endswith(("_test.c", "_fuzz.c"))]
    assert len(files) > 300 and re.search(frame, r'"*10\r\n$6\r\nFINISH"')
    assert [f for f in files if re.search(frame, text(f)) and not f.startswith(os.path.join(ROOT, "src/wire/"))] == []


def test_the_library_exports_nothing_but_the_api():
    names = {line.split()[-1] for line in
             run("nm", "-D", "--defined-only", "build/libidem.so").splitlines() if line.split()}
    headers = "".join(open(h).read() for h in glob.glob(os.path.join(ROOT, "include/idem/*.h")))
    assert "idem_open" in names and "idem_run" in names
    for name in names:
        assert name.startswith("idem_") and not name.startswith("idem__"), name
        assert name in headers, name


def text(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


def program(where, source, *libraries, headers="include"):
    """Compile a program and give its path."""
    file, out = os.path.join(where, "program.c"), os.path.join(where, "program")
    with open(file, "w") as f:
        f.write(source)
    run("gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-I" + headers, file, "-o", out,
        "-Lbuild", "-lidem", "-Wl,-rpath," + os.path.join(ROOT, "build"), *libraries)
    return out


def members(body):
    """The names that a struct's declaration has, in order."""
    for declaration in filter(str.strip, body.split(";")):
        function = re.search(r"\(\*(\w+)\)\(", declaration)
        if function:
            yield function.group(1)
            continue
        for part in declaration.split(","):
            yield re.search(r"(\w+)(?:\[\w+\])?\s*$", part).group(1)


def layout():
    """Every public struct with the places of its members, every enum with its numbers: a line each."""
    lines = []
    for header in HEADERS:
        code = re.sub(r"/\*.*?\*/", "", text("include/idem/%s.h" % header), flags=re.S)
        for name, body in re.findall(r"^struct (idem_\w+) \{(.*?)^\};", code, re.S | re.M):
            lines.append('printf("struct %s %%zu:", sizeof(struct %s));' % (name, name))
            lines += ['printf(" %s %%zu", offsetof(struct %s, %s));' % (m, name, m) for m in members(body)]
            lines.append('puts("");')
        for name, body in re.findall(r"^enum ?(\w*) \{(.*?)\}", code, re.S | re.M):
            lines.append('printf("enum %s:");' % (name or "flags"))
            lines += ['printf(" %s %%d", %s);' % (e, e) for e in re.findall(r"\b(IDEM_\w+)", body)]
            lines.append('puts("");')
    return "%s\nint main(void) { %s return 0; }" % (
        "".join("#include <%s>\n" % h for h in ["stddef.h", "stdio.h"] + ["idem/%s.h" % h for h in HEADERS]), "\n".join(lines))


def test_structs_and_enums_stay_as_programs_know_them():
    """A line of tests/support/abi.txt is a promise to programs that are compiled. A new member takes its bytes from `room`, a new
    enumerator comes last: then the line changes by what is new and by nothing else. Anything else needs another SOVERSION."""
    with folder() as where:
        assert run(program(where, layout())) == text("tests/support/abi.txt")


NEWER = """
#include <idem/idem.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
    struct idem_engine *engine;
    struct idem_error err;

    if (idem_open("memory:", &(struct idem_options){.max_batch = 7}, &engine, &err) != IDEM_OK)
        return fputs(err.text, stderr), 1;
    idem_close(engine);
    if (idem_open("memory:", &(struct idem_options){.colour = "red"}, &engine, &err) != IDEM_ERR_UNSUPPORTED)
        return fputs("accepted", stderr), 1;
    return fputs(err.text, stdout), 0;
}
"""


def test_a_member_of_a_newer_header_is_refused_and_not_ignored():
    with folder() as where:
        newer = shutil.copytree(os.path.join(ROOT, "include"), os.path.join(where, "include"))
        with open(newer + "/idem/engine.h") as f:
            header = f.read()
        grown = header.replace("uint64_t room[7];", "const char *colour; uint64_t room[6];", 1)
        assert grown != header
        with open(newer + "/idem/engine.h", "w") as f:
            f.write(grown)
        assert "newer version" in run(program(where, NEWER, headers=newer))


@pytest.mark.parametrize("header", HEADERS)
def test_every_public_function_is_documented(header):
    """By a comment before it, or before the first of a row of them."""
    blocks = text("include/idem/%s.h" % header).split("\n\n")
    bare = [b for b in blocks if "\nIDEM_API" in "\n" + b and not re.match(r"(.*\n)*?/\*", b.split("IDEM_API")[0])]
    assert bare == []


ONCE = """
#include <idem/idem.h>
#include <stdio.h>
static enum idem_state
place_order(void *order, uint64_t fence, struct idem_bytes *result)
{
    ++*(int *)order;
    *result = idem_text("placed");
    return fence ? IDEM_STATE_SUCCEEDED : IDEM_STATE_FAILED;
}
int main(void)
{
    int times = 0, *order = &times;
    struct idem_error err = {0};
    for (int i = 0; i < 2; i++) {
        struct idem_answer answer;
        %s
        if (answer.record->result.len != 6)
            return fputs(err.text, stderr), 1;
        idem_answer_clear(&answer);
        idem_close(engine);
    }
    return times != 1;
}
"""


def block(path, start):
    """The lines of a header's head comment, or of a page, from `start` on: as far as they are indented or fenced."""
    lines = text(path)[text(path).index(start):].split("\n\n")[0].split("\n *\n")[0]
    return re.sub(r"^ \*", "", lines.split("```")[0], flags=re.M)


@pytest.mark.parametrize("path", ["include/idem/idem.h", "README.md", "README.zh-CN.md"])
def test_the_short_example_runs_once(path):
    code = block(path, "idem_open(")
    with folder() as where:
        assert "journal:/var/lib/shop/idem" in code
        code = "struct idem_engine *engine;\n" + code.replace("/var/lib/shop/idem", where + "/journal")
        run(program(where, ONCE % code))


DATABASE = """
#include <idem/idem.h>
#include <idem/sql.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static sqlite3 *conn;
static struct idem_sql *db;
static struct idem_answer answer;
static struct idem_error err;
static void
say(const char *what)
{
    fprintf(stderr, "%%s: %%s\\n", what, err.text);
    exit(1);
}
static void
sql(const char *text)
{
    if (sqlite3_exec(conn, text, NULL, NULL, NULL) != SQLITE_OK)
        fprintf(stderr, "%%s: %%s\\n", text, sqlite3_errmsg(conn)), exit(1);
}
static void __attribute__((unused))
expect(bool good)
{
    if (!good)
        say("another answer than the page says");
    idem_answer_clear(&answer);
}
%s
int main(int argc, char **argv)
{
    if (argc != 2 || sqlite3_open(argv[1], &conn) != SQLITE_OK)
        return 1;
    if (idem_sql_sqlite(conn, &db, &err) != IDEM_OK)
        say("adapter");
    %s
    idem_sql_close(db);
    sqlite3_close(conn);
    return 0;
}
"""


def with_database(code, before=""):
    """Run it as a program on a SQLite file that has idem's tables."""
    with folder() as where:
        file = os.path.join(where, "shop.db")
        run("build/idem", "store", "init", "sqlite:" + file)
        run(program(where, DATABASE % (before, code), "-lsqlite3"), file)


def test_the_example_of_sql_h_claims_and_finishes_in_one_transaction():
    lines, said = [], {"begin", "commit", "update account set ..."}
    for line in block("include/idem/sql.h", "  begin  ").splitlines():
        line = re.split(r"\s{3,}", line.strip())[0]
        if line in said:
            said.remove(line)
            lines.append('sql("%s");' % line.replace("...", "balance = balance - 100"))
        else:
            lines.append("if (%s != IDEM_OK) say(\"call\");" % line if line.startswith("idem_sql") else line + ";")
    assert not said
    setting = """struct idem_op op = {.scope = idem_text("shop"), .id = idem_text("order-7")};
        sql("create table account (balance integer)"); sql("insert into account values (300)");
        %s
        idem_answer_clear(&answer);
        if (idem_sql_do(db, &(struct idem_op){.verb = IDEM_GET, .scope = op.scope, .id = op.id}, &answer, &err) != IDEM_OK)
            say("get");
        expect(answer.record->state == IDEM_STATE_SUCCEEDED && memcmp(answer.record->result.data, "paid", 4) == 0);"""
    with_database(setting % "\n".join(lines))


WORK = """
static enum idem_state
move_money(void *transfer, struct idem_sql *adapter, uint64_t fence, struct idem_bytes *result)
{
    sql(transfer);
    *result = idem_text("moved");
    return adapter == db && fence ? IDEM_STATE_SUCCEEDED : IDEM_STATE_FAILED;
}
"""

SCHEMES = """
    const char *source = "shop", *seq = "7";
    char transfer[] = "update account set balance = balance - 1";
    struct idem_sql_pair key = {"id", idem_sql_int(1)}, price = {"price", idem_sql_int(50)};
    struct idem_sql_pair values[2] = {{"price", idem_sql_int(5)}, {"version", idem_sql_int(10)}};
    struct idem_sql_place account = {"account", &key, 1}, item = {"bank_order", &key, 1};
    struct idem_sql_move moves[] = {{idem_sql_text("created"), idem_sql_text("paid")}};
    struct idem_sql_machine machine = {"account", "id", "state", moves, 1};
    struct idem_sql_value order = idem_sql_int(1);
    enum idem_sql_verdict verdict = IDEM_SQL_IS_FIRST;
    struct idem_sql_row row;
    sql("create table account (id integer primary key, balance integer, state text)");
    sql("create table bank_order (id integer primary key, price integer, version integer)");
    sql("insert into account values (1, 101, 'created')");
    %s
"""


@pytest.mark.parametrize("page", ["docs/choosing.md", "docs/choosing.zh-CN.md"])
def test_the_schemes_of_the_page_about_choosing_run(page):
    blocks = re.findall(r"^```c\n(.*?)^```", text(page), re.S | re.M)
    assert len(blocks) == 6
    checked = [blocks[0] + "expect(answer.verdict == IDEM_V_STARTED);", 'sql("begin");']
    for code in blocks[1:]:
        checked.append("verdict = IDEM_SQL_IS_EMPTY; %s expect(verdict == IDEM_SQL_IS_FIRST);" % code)
    with_database(SCHEMES % "\n".join(checked + ['sql("commit");']), WORK)
