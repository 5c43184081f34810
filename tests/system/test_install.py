"""What `make install` puts where, and that programs can be built from it."""
import glob
import os
import re
import shutil
import subprocess

import pytest

from lib import IDEM, ROOT, folder


def run(*args, cwd=ROOT, env=None, code=0):
    result = subprocess.run(args, cwd=cwd, env={**os.environ, **(env or {})}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    assert result.returncode == code, result.stdout
    return result.stdout


@pytest.fixture(scope="module")
def make_opt():
    """make for PREFIX=/opt/idem, in a copy of the build: another PREFIX links the program again, and other tests
    run it meanwhile."""
    with folder() as where:
        build = os.path.join(where, "build")
        os.mkdir(build)
        for made in os.scandir(os.path.join(ROOT, "build")):
            if made.is_file():
                shutil.copy2(made.path, build, follow_symlinks=False)
            elif made.name in ("obj", "modules", "console", "examples"):
                shutil.copytree(made.path, os.path.join(build, made.name))
        yield lambda goal, root: run("make", "-s", goal, "B=" + build, "DESTDIR=" + root, "PREFIX=/opt/idem")


@pytest.fixture(scope="module")
def installed(make_opt):
    before = os.stat(IDEM)
    with folder() as root:
        make_opt("install", root)
        assert os.stat(IDEM).st_mtime_ns == before.st_mtime_ns
        yield root


def pkg_config(root, *args):
    """As on a machine where idem lies in `root`, with the other packages where they are."""
    out = run("pkg-config", *args, "idem", env={"PKG_CONFIG_PATH": root + "/opt/idem/lib/pkgconfig"})
    return out.replace("/opt/idem", root + "/opt/idem").split()


def test_everything_is_where_people_look_for_it(installed):
    for path in ("bin/idem", "include/idem/idem.h", "include/idem/engine.h", "include/idem/record.h",
                 "lib/libidem.a", "lib/libidem.so", "lib/pkgconfig/idem.pc", "share/man/man1/idem.1",
                 "share/bash-completion/completions/idem", "share/zsh/vendor-completions/_idem",
                 "share/fish/vendor_completions.d/idem.fish", "share/man/man1/idem-settle.1", "share/man/man5/idem.conf.5", "share/idem/idem.js", "share/idem/sql/postgres.sql"):
        assert os.path.exists(os.path.join(installed, "opt/idem", path)), path
    assert glob.glob(installed + "/opt/idem/lib/idem/ngx_http_idem_module.so")
    assert os.readlink(installed + "/opt/idem/lib/libidem.so") == "libidem.so.0"
    assert os.path.exists(installed + "/opt/idem/lib/libidem.so.0")
    assert run(installed + "/opt/idem/bin/idem", "--version").startswith("idem ")


def test_the_soname_and_version_agree(installed):
    version = run(installed + "/opt/idem/bin/idem", "--version").split()[1]
    elf = run("readelf", "-d", installed + "/opt/idem/lib/libidem.so")
    assert "[libidem.so.0]" in elf
    assert os.path.exists(installed + "/opt/idem/lib/libidem.so." + version)
    assert run("pkg-config", "--modversion", "idem",
               env={"PKG_CONFIG_PATH": installed + "/opt/idem/lib/pkgconfig"}).strip() == version


def build_once(root, where, compiler, *flags):
    out = os.path.join(where, "once")
    run(compiler, *flags, os.path.join(ROOT, "examples/once.c"), "-o", out,
        *pkg_config(root, "--cflags", "--libs"))
    return out


def run_once(program, where, root):
    env = {"LD_LIBRARY_PATH": root + "/opt/idem/lib"}
    first = run(program, where + "/data", "order-7", env=env)
    second = run(program, where + "/data", "order-7", env=env)
    assert first == "ran: 1 sandwich for order-7\n"
    assert second == "replayed: 1 sandwich for order-7\n"


def test_the_example_builds_with_pkg_config_and_runs_once(installed):
    with folder() as where:
        run_once(build_once(installed, where, "gcc", "-Wall", "-Wextra", "-Werror"), where, installed)


def test_it_links_statically(installed):
    """libidem.a with the other libraries shared, which is what Debian's packages allow."""
    pc = installed + "/opt/idem/lib/pkgconfig"
    needs = run("pkg-config", "--print-requires-private", "idem", env={"PKG_CONFIG_PATH": pc}).split()
    with open(pc + "/idem.pc") as f:
        private = re.search(r"^Libs.private: (.*)$", f.read(), re.M).group(1).split()
    with folder() as where:
        out = os.path.join(where, "once")
        run("gcc", os.path.join(ROOT, "examples/once.c"), "-o", out, "-I", installed + "/opt/idem/include",
            installed + "/opt/idem/lib/libidem.a", *run("pkg-config", "--libs", *needs).split(), *private)
        run_once(out, where, installed)


CPP = r"""
%s
#include <cstdio>
#include <string>

static idem_state work(void *arg, uint64_t, idem_bytes *result)
{
    ++*static_cast<int *>(arg);
    *result = idem_text("done");
    return IDEM_STATE_SUCCEEDED;
}

int main()
{
    idem_engine *engine = nullptr;
    idem_error err = {};
    idem_op op = {};
    int ran = 0;

    op.scope = idem_text("c++");
    op.id = idem_text("1");
    if (idem_open("memory:", nullptr, &engine, &err) != IDEM_OK)
        return 1;
    for (int i = 0; i < 3; i++) {
        idem_answer answer = {};
        if (idem_run(engine, &op, work, &ran, &answer, &err) != IDEM_OK)
            return 2;
        std::string result(static_cast<const char *>(answer.record->result.data), answer.record->result.len);
        if (result != "done")
            return 3;
        idem_answer_clear(&answer);
    }
    idem_close(engine);
    return ran == 1 ? 0 : 4;
}
"""


def test_every_header_works_in_cpp(installed):
    headers = sorted(os.path.basename(h) for h in glob.glob(installed + "/opt/idem/include/idem/*.h"))
    assert "idem.h" in headers
    with folder() as where:
        source = os.path.join(where, "once.cc")
        with open(source, "w") as f:
            f.write(CPP % "\n".join("#include <idem/%s>" % h for h in headers))
        out = os.path.join(where, "once")
        run("g++", "-std=c++11", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror", source, "-o",
            out, *pkg_config(installed, "--cflags", "--libs"))
        run(out, env={"LD_LIBRARY_PATH": installed + "/opt/idem/lib"})


def test_every_header_stands_alone(installed):
    with folder() as where:
        for header in glob.glob(installed + "/opt/idem/include/idem/*.h"):
            source = os.path.join(where, "alone.c")
            with open(source, "w") as f:
                f.write("#include <idem/%s>\nint main(void) { return 0; }\n" % os.path.basename(header))
            run("gcc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", source,
                *pkg_config(installed, "--cflags"))


def declared():
    names = set()
    for header in glob.glob(os.path.join(ROOT, "include/idem/*.h")):
        with open(header) as f:
            text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
        text = re.sub(r"^\s*#.*(\\\n.*)*$", "", text, flags=re.M)
        for declaration in re.findall(r"IDEM_API\s+([^;]*);", text):
            names.add(re.search(r"\b(idem_\w+)\s*(\(|$)", declaration).group(1))
    return names


def test_only_the_api_is_exported_and_all_of_it():
    out = run("nm", "-D", "--defined-only", os.path.join(ROOT, "build/libidem.so"))
    exported = {line.split()[2].split("@")[0] for line in out.splitlines() if line.split()[1] in "TDBRVW"}
    assert exported == declared()
    assert not [name for name in exported if name.startswith("idem__")]


def test_the_static_library_takes_no_name_of_the_programs():
    out = run("nm", "--defined-only", "--extern-only", os.path.join(ROOT, "build/libidem.a"))
    names = re.findall(r"^[0-9a-f]+ [A-Z] (\S+)$", out, re.M)
    assert len(names) > 200
    assert sorted({name for name in names if not name.startswith("idem_")}) == []


def test_uninstall_leaves_no_file(make_opt):
    with folder() as root:
        make_opt("install", root)
        assert os.path.exists(root + "/opt/idem/bin/idem")
        make_opt("uninstall", root)
        left = [os.path.join(d, f) for d, _, files in os.walk(root) for f in files]
        assert left == []


def complete(*words):
    """What bash offers for the last word."""
    script = ("source <(idem completion bash); COMP_WORDS=(%s); COMP_CWORD=%d; _idem; "
              'printf "%%s\\n" "${COMPREPLY[@]}"' % (" ".join("'%s'" % w for w in words), len(words) - 1))
    env = {"PATH": os.path.join(ROOT, "build") + ":" + os.environ["PATH"]}
    return run("bash", "-c", script, env=env).split()


def test_bash_completes_commands_options_and_values():
    assert complete("idem", "rel") == ["release"]
    assert "begin" in complete("idem", "") and "--version" in complete("idem", "")
    assert complete("idem", "begin", "--pay") == ["--payload"]
    assert complete("idem", "settle", "a", "b", "--as", "s") == ["succeeded"]
    assert "exit-codes" in complete("idem", "help", "") and "begin" in complete("idem", "help", "")
    assert complete("idem", "id", "explain", "7", "--kind", "") == ["snowflake", "uid"]
    assert complete("idem", "completion", "z") == ["zsh"] and complete("idem", "gateway", "--upst") == ["--upstream"]


def help_options():
    """Every command and its options, as help tells them."""
    names = re.findall(r"^  ([a-z]+) ", run(IDEM, "--help"), re.M)
    return {n: re.findall(r"^ +(?:-\w, )?--([a-z-]+)", run(IDEM, "help", n), re.M) for n in names if n != "help"}


def test_fish_completes_every_command_and_option(tmp_path):
    def offered(line):
        env = {"PATH": os.path.join(ROOT, "build") + ":" + os.environ["PATH"], "HOME": str(tmp_path)}
        said = run("fish", "--no-config", "-c", "idem completion fish | source; complete -C '%s'" % line, env=env)
        return [entry.split("\t")[0] for entry in said.splitlines()]

    assert offered("idem rel") == ["release"] and offered("idem settle a b --as s") == ["succeeded"]
    assert offered("idem completion z") == ["zsh"] and "connecting" in offered("idem help ")
    for command in ("begin", "gateway", "check"):
        assert {"--" + o for o in help_options()[command]} <= set(offered("idem %s --" % command)), command


def test_zsh_completes_every_command_and_option():
    script = """source <(idem completion zsh)
_describe() { print -l -- "DESCRIBE" "${commands[@]}" }
_arguments() { print -l -- "$@" }
words=(%s); CURRENT=%d; _idem"""
    env = {"PATH": os.path.join(ROOT, "build") + ":" + os.environ["PATH"]}
    offered = run("zsh", "-f", "-c", script % ("idem ''", 2), env=env)
    assert {line.split(":")[0] for line in offered.splitlines()[1:]} == set(help_options()) | {"help"}
    for command, options in help_options().items():
        offered = run("zsh", "-f", "-c", script % ("idem %s ''" % command, 3), env=env)
        assert set(options) <= set(re.findall(r"^\*?--([a-z-]+)\[", offered, re.M)), command


def test_every_command_has_a_manual_page():
    for command, options in help_options().items():
        page = run(IDEM, "help", "--man", command)
        assert ".TH IDEM\\-%s 1" % command.upper() in page and ".SH SYNOPSIS\n.nf\nidem %s" % command in page, command
        told = set(re.findall(r"^\\fB(?:\\-\w\\fR, \\fB)?\\-\\-([a-z\\-]+)\\fR", page, re.M))
        assert {o.replace("-", "\\-") for o in options} - {"help"} == told, command


NO_LINES = {"serve": {"config", "check"}, "gateway": {"config", "check", "print-config"}}


@pytest.mark.parametrize("page,command", [("idem.conf", "serve"), ("idem-gateway.conf", "gateway")])
def test_the_files_have_manual_pages_with_the_names_that_they_take(page, command, tmp_path):
    text = run(IDEM, "help", "--man", page)
    assert re.search(r"^\.TH %s 5 " % re.escape(page.upper().replace("-", "\\-")), text, re.M), text[:200]
    names = {n.replace("\\", "") for n in re.findall(r"^\.TP\n\\fB([a-z\\-]+)\\fR = ", text, re.M)}
    options = set(help_options()[command]) - {"help", "json"} - NO_LINES[command]
    assert names == (options | {"host"} if command == "gateway" else options) and len(names) > 30
    shown = subprocess.run(["groff", "-man", "-ww", "-Tascii", str(write(tmp_path / page, text))], capture_output=True, text=True)
    assert shown.returncode == 0 and shown.stderr == "" and shown.stdout.count("\n") > 60, shown.stderr
    for name in sorted(names) + ["nonsense"]:  # the reader of the file knows these and no others
        file = write(tmp_path / "file", "%s = ?\n" % name)
        done = subprocess.run([IDEM, command, "--config", str(file), *(["--check"] if command == "serve" else ["--print-config"])],
                              capture_output=True, text=True, timeout=60)
        unknown = re.search("there is no (setting|option)", done.stderr) is not None
        assert unknown == (name == "nonsense"), (name, done.stderr)


def write(path, text):
    path.write_text(text)
    return path


def test_every_store_and_broker_can_be_left_out():
    """A small build: no database library is linked, and what was left out says so."""
    without = ["WITH_%s=0" % name for name in ("SQLITE", "REDIS", "POSTGRES", "MYSQL", "ZOOKEEPER", "ETCD",
                                               "RABBITMQ", "KAFKA", "NGINX")]
    with folder() as where:
        run("make", "-s", "-j2", "CFLAGS=-O0", "B=" + where, *without, "lib", where + "/idem")
        linked = run("ldd", where + "/idem")
        for library in ("sqlite", "libpq", "mariadb", "zookeeper", "rabbitmq", "rdkafka"):
            assert library not in linked
        for url in ("redis://h", "postgres://h", "mysql://h", "sqlite:f", "zookeeper://h", "etcd://h"):
            said = run(where + "/idem", "begin", "s", "i", "--store", url, code=26)
            assert re.split("[:+]", url)[0] + ": this part of idem is not installed" in said
        assert "started" in run(where + "/idem", "begin", "s", "i", "--store", "journal:" + where + "/j")


def libraries(file):
    return set(re.findall(r"^\s*(\S+) =>", run("ldd", file), re.M))


def test_a_journal_loads_no_database_library():
    """What a store or a broker needs is loaded by its module, not by the library or by idem."""
    foreign = ("libpq", "libmariadb", "libsqlite3", "libzookeeper", "librdkafka", "librabbitmq", "libnats", "libhiredis", "libcurl")
    for name in libraries(os.path.join(ROOT, "build/libidem.so")):
        assert not name.startswith(foreign), name
    for name in libraries(os.path.join(ROOT, "build/idem")):
        assert not name.startswith(foreign[:7]), name


def test_modules_are_installed_and_found(installed):
    program = installed + "/opt/idem/bin/idem"
    modules = {os.path.basename(f) for f in glob.glob(installed + "/opt/idem/lib/idem/*.so")}
    assert modules == {name + ".so" for name in ("sqlite", "redis", "postgres", "mysql", "zookeeper", "etcd", "rabbitmq",
                                                 "kafka", "nats", "ngx_http_idem_module")}
    with folder() as where:
        assert "started" in run(program, "begin", "s", "i", "--store", "sqlite:" + where + "/db", code=0)
        assert "not installed" in run(program, "get", "s", "i", "--store", "sqlite:" + where + "/db", code=26,
                                      env={"IDEM_MODULES": where})


def test_a_module_exports_its_constants_only():
    for module in glob.glob(os.path.join(ROOT, "build/modules/*.so")):
        names = re.findall(r" [A-Z] (\S+)$", run("nm", "-D", "--defined-only", module), re.M)
        assert "idem__module_version" in names
        assert [n for n in names if not re.match(r"idem__\w+_(store|source|version)$|idem__sql_\w+$|idem__sandbox_\w+$", n)] == [], module


def test_modules_do_not_come_from_the_current_folder(tmp_path):
    """A program found on the path knows itself as "idem"; a file of that name here must not make "here" its home."""
    (tmp_path / "idem").write_text("")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/sqlite.so").write_text("not a module")
    env = {**os.environ, "PATH": os.path.dirname(IDEM) + ":" + os.environ["PATH"]}
    env.pop("IDEM_MODULES", None)
    done = subprocess.run(["idem", "store", "init", "sqlite:db"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done


def test_a_module_of_another_version_is_refused():
    with folder() as where:
        source = os.path.join(where, "old.c")
        with open(source, "w") as f:
            f.write('const char *const idem__module_version = "0.0.7";\nint idem__sqlite_store;\n')
        run("gcc", "-shared", "-fPIC", source, "-o", where + "/sqlite.so")
        said = run(os.path.join(ROOT, "build/idem"), "begin", "s", "i", "--store", "sqlite:x", code=26,
                   env={"IDEM_MODULES": where})
        assert "is of idem 0.0.7" in said and "same version" in said


FAKES = {"dpkg-query": "exit 1", "id": "echo 1000", "sleep": 'echo "sleep $1" >> "$LOG"',
         "sudo": 'case $1 in apt-get) exec "$@" ;; tee) cat >/dev/null ;; esac',
         "apt-get": 'echo "$*" >> "$LOG"; echo "the mirror is away" >&2; [ "$(grep -c install "$LOG")" -gt "$FAILURES" ]'}


@pytest.mark.parametrize("failures, code", [(0, 0), (2, 0), (9, 1)])
def test_missing_packages_are_asked_for_until_the_mirror_answers(failures, code):
    """With commands that only pretend, as an ordinary user with sudo on a bare machine."""
    with folder() as where:
        for name, text in FAKES.items():
            with open(os.path.join(where, name), "w") as f:
                f.write("#!/bin/sh\n" + text + "\n")
            os.chmod(f.name, 0o755)
        log = os.path.join(where, "log")
        said = run(os.path.join(ROOT, "scripts/deps"), "demo", code=code,
                   env={"PATH": where + ":" + os.environ["PATH"], "LOG": log, "FAILURES": str(failures)})
        with open(log) as f:
            lines = f.read().splitlines()
        pauses = ["sleep 5", "sleep 20", "sleep 60"][:failures]
        assert [line for line in lines if line.startswith("sleep")] == pauses
        assert sum(" install " in line and line.endswith("curl nginx python3") for line in lines) == len(pauses) + 1
        assert ("failed four times" in said) == (code == 1) and said.count("again in") == len(pauses)
