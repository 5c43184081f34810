"""The documents name things that exist: files, commands, make targets."""
import os
import re
import subprocess
import textwrap

import pytest

from gateway import MODULE, nginx_test
from lib import IDEM, ROOT, Process, folder, free_port


def text(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


def documents():
    files = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout.split()
    return files or [f for f in os.listdir(ROOT) if f.endswith(".md")]


def test_every_link_leads_somewhere():
    broken = []
    for document in documents():
        for target in re.findall(r"\]\(([^)#\s]+)", text(document)):
            if not re.match(r"[a-z]+:", target):
                path = os.path.join(ROOT, os.path.dirname(document), target)
                if not os.path.exists(path):
                    broken.append("%s: %s" % (document, target))
    assert broken == []


def anchors(path):
    """What GitHub, and the site, call the headings of a page."""
    page = re.sub(r"^```.*?^```$", "", text(path), flags=re.M | re.S)
    headings = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"^#+ (.*)$", page, re.M)]
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_every_link_into_a_page_finds_its_heading():
    broken = []
    for document in documents():
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text(document)):
            path = os.path.normpath(os.path.join(os.path.dirname(document), target)) if target else document
            if not re.match(r"[a-z]+:", target) and path.endswith(".md") and anchor not in anchors(path):
                broken.append("%s: %s#%s" % (document, target, anchor))
    assert broken == []


def test_both_readmes_lead_to_the_same_places():
    links = lambda path: [link.replace(".zh-CN", "") for link in re.findall(r"\]\((?!README)([^)#]+)[^)]*\)", text(path))]
    assert links("README.md") == links("README.zh-CN.md")


def test_a_chinese_page_leads_to_chinese_pages():
    """But for the link to its own page in English, at its top."""
    english = []
    for page in documents():
        if page.endswith(".zh-CN.md"):
            for target in re.findall(r"\]\(([^)#\s]+\.md)", text(page)):
                path = os.path.normpath(os.path.join(os.path.dirname(page), target))
                twin = path.replace(".md", ".zh-CN.md")
                if path != page.replace(".zh-CN", "") and not path.endswith(".zh-CN.md") and os.path.exists(os.path.join(ROOT, twin)):
                    english.append("%s: %s" % (page, target))
    assert english == []


def shape(path):
    """The headings' levels, and the code, but for comments in another language. Pictures and outputs (text) have the page's language, but for the
    tutorials and how-to pages, where a test compares them with what is printed."""
    page = text(path)
    code = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)
    rest = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    return re.findall(r"^(#+) ", rest, re.M), [kind if kind == "text" and not path.startswith(("docs/tutorials/", "docs/howto/")) else
                                                re.sub(r" *(/\*|//|#|--) .*", "", block) for kind, block in code]


@pytest.mark.parametrize("page", [page for page in documents() if page.endswith(".zh-CN.md")])
def test_a_page_has_the_same_headings_and_code_in_both_languages(page):
    assert shape(page) == shape(page.replace(".zh-CN", ""))


def figures(path):
    """The rows of tables with two figures or more: a table of one language that was not updated."""
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text(path).splitlines() if line.startswith("|"))
    found = ([cell for cell in row if re.fullmatch(r"[\d., %]*\d[\d., %]*", cell)] for row in rows)
    return [row for row in found if len(row) > 1]


@pytest.mark.parametrize("page", [page for page in documents() if page.endswith(".zh-CN.md")])
def test_tables_have_the_same_figures_in_both_languages(page):
    assert figures(page) == figures(page.replace(".zh-CN", ""))


def test_the_map_names_folders_and_files_that_exist():
    map_ = text("ARCHITECTURE.md")
    for folder in re.findall(r"`((?:src|include|sql|clients|examples|docs|bench|tests)/[\w/]*)`", map_):
        if folder.endswith("/") and not folder.startswith("sql/"):
            assert os.path.isdir(os.path.join(ROOT, folder)), folder
    tracked = {os.path.basename(f) for _, _, files in os.walk(os.path.join(ROOT, "src")) for f in files}
    tracked |= {f for _, _, files in os.walk(os.path.join(ROOT, "tests")) for f in files}
    tracked |= set(os.listdir(os.path.join(ROOT, "include/idem")))
    for name in re.findall(r"`(\w+\.[ch])`", map_):
        assert name in tracked, name


def test_every_invariant_is_cited_where_it_is_kept():
    numbers = re.findall(r"^- \*\*(I\d+)\*\*", text("ARCHITECTURE.md"), re.M)
    assert numbers == ["I%d" % i for i in range(1, len(numbers) + 1)] and len(numbers) >= 10


def test_the_stability_page_names_the_versions_of_the_program():
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", text("docs/stability.md"), re.M))
    minor = re.search(r'#define IDEM_VERSION "(\d+\.\d+)', text("include/idem/idem.h")).group(1)
    assert rows["C API, `include/idem/*.h`"] == minor and rows["clients (`clients/`)"] == minor
    soname = re.search(r"^SOVERSION := (\d+)", text("Makefile"), re.M).group(1)
    assert rows["C ABI, `libidem.so.%s`" % soname] == "soname " + soname
    assert rows["journal's format"] == re.search(r"JOURNAL_VERSION (\d+)", text("src/store/journal/format.h")).group(1)
    assert "| %s.x | yes |" % minor in text("SECURITY.md")


README = pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])


def steps(readme, pattern, change, **env):
    """The lines of a README that match, pasted into one shell; what each said."""
    lines = re.findall(r"^    ((?:fence=\$\()?%s .*?)(?:\s+#.*)?$" % pattern, text(readme), re.M)
    script = "".join("%s\necho END OF LINE\n" % change(line) for line in lines)
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, text=True, stdout=subprocess.PIPE, env={**os.environ, **env})
    return done.stdout.split("END OF LINE\n")[:-1]


@README
def test_the_first_steps_of_the_readme_work(tmp_path, readme):
    here = lambda line: line.replace("build/idem", IDEM)  # noqa: E731
    store = "journal:%s" % tmp_path
    said = steps(readme, r"build/idem (?:begin|finish)", here, IDEM_STORE=store)
    assert [out.split()[:1] for out in said] == [[], ["busy"], ["ok"], ["replay"]]  # the first line keeps the fence
    first, again = (steps(readme, "build/idem run", here, IDEM_STORE=store) for _ in range(2))
    assert len(first) == 1 and first[0] and first == again


@README
def test_the_readmes_server_answers_redis_cli(tmp_path, readme):
    line = re.search(r"^    build/idem (serve .*) &$", text(readme), re.M).group(1)
    port = free_port()
    argv = line.replace("6390", str(port)).replace("$HOME/shop-server", str(tmp_path / "j")).split()
    with Process([IDEM, *argv, "--socket", str(tmp_path / "s")], ready=port):
        said = steps(readme, "redis-cli", lambda line: line.replace("6390", str(port)))
        assert [out.split()[:1] for out in said] == [[], ["ok"], ["replay"]] and '{"order":8}' in said[2]


@README
def test_the_readmes_lines_in_each_language_are_those_that_the_client_runs(readme):
    """The tests of each client run the code of its page."""
    for language, page in (("python", "python"), ("java", "java"), ("js", "node"), ("go", "go"), ("php", "php")):
        lines = re.search(r"```%s\n(.*?)```" % language, text(readme), re.S).group(1).splitlines()
        assert lines and set(lines) <= set(text("clients/%s/README.md" % page).splitlines()), language


@README
def test_the_readmes_output_of_the_demo_is_what_the_demo_prints(readme):
    demo = text("scripts/demo")
    for line in re.search(r"```text\n(1\. .*?)```", text(readme), re.S).group(1).splitlines():
        said = re.sub(r"^\d\. |^   ", "", line)
        assert said in demo or re.match(r"(.*?): ", said).group(1) in demo, line


def test_the_page_of_every_client_is_found_from_the_start():
    for page in ("clients/README.md", "clients/README.zh-CN.md"):
        for language in ("java", "python", "node", "go", "php"):
            assert "](%s/%s)" % (language, os.path.basename(page)) in text(page)


def test_every_option_that_is_shown_exists():
    help_of = {}
    seen = 0
    for document in documents():
        for command, rest in re.findall(r"\bidem ([a-z]+)\b([^`\n]*)", text(document)):
            options = re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest.split(" -- ")[0].split(" #")[0].split("；")[0])
            if not options:
                continue
            if command not in help_of:
                help_of[command] = subprocess.run([IDEM, command, "--help"], text=True, stdout=subprocess.PIPE).stdout
            for option in options:
                assert re.search(r"%s\b(?!-)" % option, help_of[command]), (document, command, option)
                seen += 1
    assert seen > 30


@pytest.mark.parametrize("command", ["serve", "gateway"])
def test_every_option_of_the_servers_is_explained(command):
    help = subprocess.run([IDEM, command, "--help"], text=True, stdout=subprocess.PIPE).stdout
    options = set(re.findall(r"^ +(?:-\w, )?--([a-z-]+)", help, re.M)) - {"json", "help"}
    page = text("docs/server.md" if command == "serve" else "docs/gateway.md")
    missing = [o for o in options if not re.search(r"--%s\b|`%s`|idem_%s\b" % (o, o, o.replace("-", "_")), page)]
    assert len(options) > 15 and not missing, missing


def test_every_directive_of_the_module_is_in_the_guide():
    code = text("src/gateway/module/ngx_http_idem_directives.c")
    directives = set(re.findall(r'^    (?:\{ ngx_string|ngx_http_idem_loc)\("(idem\w*)"', code, re.M))
    variables = set(re.findall(r'^    \{ ngx_string\("(idem_\w+)"\)', text("src/gateway/module/ngx_http_idem_variables.c"), re.M))
    guide = re.sub(r"^```.*?^```$", "", text("docs/gateway.md"), flags=re.M | re.S)
    named = set(re.findall(r"(?<![\w$])(idem_\w+|idem(?= on))", " ".join(re.findall(r"`[^`]+`", guide))))
    assert len(directives) > 20 and len(variables) == 8
    assert {n for n in named if not n.endswith("_total")} - {"idem_module"} == directives  # metrics: test_metrics.py
    assert variables == set(re.findall(r"\$(idem_\w+)", guide))


@pytest.mark.parametrize("page", ["docs/gateway.md", "docs/gateway.zh-CN.md"])
def test_the_configuration_for_ones_own_nginx_is_one(page):
    block = textwrap.dedent(re.search(r"^    load_module .*?^    }\n", text(page), re.M | re.S).group(0))
    with folder() as where:
        temp = "".join("%s_temp_path %s/%s; " % (n, where, n) for n in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        block = block.replace("modules/ngx_http_idem_module.so", MODULE).replace(
            "http {", "events {} pid %s/p; error_log stderr; http { access_log off; %s upstream orders { server "
            "127.0.0.1:9; }" % (where, temp), 1).replace("server {\n", "server { listen 127.0.0.1:%d;\n" % free_port(), 1)
        with open(os.path.join(where, "n.conf"), "w") as f:
            f.write(block)
        told = nginx_test(where, os.path.join(where, "n.conf"))
        assert told.returncode == 0, told.stderr + block


def sources(folder="src"):
    for where, _, files in os.walk(os.path.join(ROOT, folder)):
        for name in files:
            if name.endswith(".c") and not name.endswith(("_test.c", "_fuzz.c")):
                yield text(os.path.join(where, name))


def test_every_log_event_is_in_the_catalogue_and_the_other_way_round():
    levels = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error", "ALWAYS": "info"}
    logged = {"engine": "info, warning", "alarm": "error"}  # server_log_engine
    for code in sources():
        for level, event in re.findall(r'server_log\([^;]*?LOG_(\w+),\s*"([\w-]+)"', code):
            logged[event] = levels[level]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([a-z, ]+) \|", text("docs/events.md"), re.M))
    assert rows == logged and len(rows) > 15
    for document in documents():
        for event in re.findall(r"\bevent=([\w-]+)", text(document)):
            assert event in rows, (document, event)


@pytest.mark.parametrize("page", ["docs/troubleshooting.md", "docs/troubleshooting.zh-CN.md"])
def test_troubleshooting_has_every_problem_type_and_event_and_no_other(page):
    problems = re.findall(r'X\(\w+,\s+"([a-z-]+)",', text("src/base/problem.h").replace("\\\n", " "))
    chapter = re.split(r"^## ", text(page), flags=re.M)
    chapter = next(part for part in chapter if part.startswith(("Every problem type", "全部 problem")))
    assert sorted(re.findall(r"\]\(problems(?:\.zh-CN)?\.md#([a-z-]+)\)", chapter)) == sorted(problems) and len(problems) > 30
    events = re.findall(r"^\| `([\w-]+)` \| [a-z, ]+ \|", text("docs/events.md"), re.M)
    assert sorted(re.findall(r"(?<=[| ])`([a-z-]+)`(?=[ |])", chapter.split("| --- | --- |")[2])) == sorted(events)


def test_every_alarm_is_in_the_catalogue_and_the_other_way_round():
    raised = []
    for code in sources():
        for parts in re.findall(r'IDEM_LOG_ALARM,\s*((?:"(?:[^"\\]|\\.)*"|PRI\w+|\s)+)', code):
            raised.append("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', parts)))
    raised = [said for said in raised if said != "%s"]  # what a database's check found
    phrases = re.findall(r"^\| `([^`]+)` \|", text("docs/events.md").split("## Alarms")[1], re.M)
    assert len(raised) > 5
    assert [said for said in raised if not any(p in said for p in phrases)] == []
    assert [p for p in phrases if not any(p in said for said in raised)] == []


def test_contributing_names_make_targets_that_exist():
    makefile = text("Makefile")
    for target in re.findall(r"^    make ([a-z]+)\b", text("CONTRIBUTING.md"), re.M):
        assert re.search(r"^%s:" % target, makefile, re.M), target


def test_make_says_what_it_can_do():
    variables = [word for word in os.environ.get("MAKEFLAGS", "").split() if "=" in word]  # of the make that runs this
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}

    def make(*args):
        return subprocess.run(["make", *args, *variables], cwd=ROOT, env=env, text=True, check=True, stdout=subprocess.PIPE).stdout

    shown = make("-s", "help").splitlines()
    assert ["# " + line if line else "#" for line in shown] == text("Makefile").split("\n\n")[0].splitlines()
    for target in set(re.findall(r"make ([a-z]+(?:-[a-z]+)*) ", "\n".join(shown))):
        assert re.search(r"^%s:" % target, text("Makefile"), re.M), target
    said = "/idem; try make demo"
    assert said in make("-n") and said not in make("-n", "all") and said not in make("-sn") and said not in make("-n", "-s", "-j2")


def test_the_site_has_every_page_and_no_broken_link():
    """mkdocs --strict fails on a link that leads nowhere."""
    done = subprocess.run([os.path.join(ROOT, "scripts/docs")], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    assert done.returncode == 0, done.stdout
    site = os.path.join(ROOT, "build/site")
    menu = text("build/mkdocs.yml")
    for page in documents():
        if page.startswith("docs/"):
            assert os.path.exists(os.path.join(site, page.replace("README.md", "index.md").replace(".md", ".html"))) and ": %s\n" % page in menu, page
    index = text("build/site/search/search_index.json")
    assert "idem_open" in index


# ---- names, in both directions -------------------------------------------------------------------------------------------

COMMON = {"server", "credentials", "store", "seal-key", "json", "help"}


def options_of(command):
    help = subprocess.run([IDEM, "help", command], text=True, stdout=subprocess.PIPE).stdout
    return set(re.findall(r"^ {2,6}(?:-\w, )?--([a-z-]+)", help, re.M))


def all_commands():
    return re.findall(r"^  ([a-z]+) ", subprocess.run([IDEM, "--help"], text=True, stdout=subprocess.PIPE).stdout, re.M)


def test_the_options_of_every_command_are_listed():
    rows = dict(re.findall(r"^\| `([a-z]+)` \| ((?:`--[a-z-]+` ?)+) \|$", text("docs/cli.md"), re.M))
    listed = {command: set(re.findall(r"--([a-z-]+)", options)) for command, options in rows.items()}
    mine = {c: options_of(c) - COMMON for c in all_commands() if c not in ("serve", "gateway")}  # they have pages
    assert listed == {c: o for c, o in mine.items() if o} and len(listed) > 20


FOREIGN = {"quota-backend-bytes", "auto-compaction-retention", "max-request-bytes"}  # etcd's


def test_every_option_in_the_text_exists():
    known = set().union({"version", "man"}, COMMON, FOREIGN, *(options_of(c) for c in all_commands()))
    for document in documents():
        if document.startswith(("docs/", "README", "SECURITY")):
            for span in re.findall(r"`((?:--[a-z]|idem )[^`\n]+)`", text(document)):
                for option in re.findall(r"(?<![\w-])--([a-z][a-z-]+)", span.split(" -- ")[0]):
                    assert option in known, (document, span)


def everything():
    """What is not a document: sources, headers, scripts, rules."""
    files = subprocess.run(["git", "ls-files", "src", "include", "sql", "clients", "bench", "scripts", "monitoring", "examples", "packaging",
                            "Makefile"], cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout.split()
    found = []
    for name in files:
        if not name.endswith((".md", ".png", ".jar")) and os.path.isfile(os.path.join(ROOT, name)):
            with open(os.path.join(ROOT, name), errors="replace") as f:
                found.append(f.read())
    return "\n".join(found)


def test_every_name_that_begins_with_idem_exists():
    """Metrics, directives, variables of nginx, functions and types of C and SQL: whatever a page calls idem_something."""
    known = set(re.findall(r"\bidem_\w+", everything())) | set(re.findall(r"\| `(idem_\w+)`", text("docs/metrics.md")))
    for document in documents():
        if document not in ("CHANGELOG.md", "CONTRIBUTING.md"):
            for name in re.findall(r"(?<![\w.])idem_\w*[a-z0-9]\b(?!_)", text(document)):
                assert name in known or re.sub(r"_(sum|count|bucket)$", "", name) in known, (document, name)


INNER = {"IDEM_GATEWAY_RESTARTS", "IDEM_STEPS", "IDEM_SANITIZED", "IDEM_TEST_SIZE"}  # from the gateway to its engine; of tests


def test_every_variable_is_documented_and_the_other_way_round():
    code = everything()
    of_options = {"IDEM_" + o.upper().replace("-", "_") for o in options_of("serve")}
    pages = {document: text(document) for document in documents() if document != "CHANGELOG.md"}
    for name in set(re.findall(r'getenv\("(IDEM_\w+)"', code)) - of_options - INNER:
        assert any(name in page for page in pages.values()), name
    for document, page in pages.items():
        mine = {"IDEM_CLONE"} if document.startswith("docs/tutorials/") else set()  # the reader's folder
        for name in set(re.findall(r"\bIDEM_[A-Z0-9_]*[A-Z0-9]", page)) - of_options - mine:
            assert re.search(r"\b%s\b" % name, code), (document, name)


def test_every_problem_and_exit_code_in_the_text_exists():
    problems = set(re.findall(r'X\(\w+,\s+"([a-z-]+)",', text("src/base/problem.h").replace("\\\n", " ")))
    codes = set(re.findall(r"^ +(\d+)  ", subprocess.run([IDEM, "help", "exit-codes"], text=True, stdout=subprocess.PIPE).stdout, re.M))
    codes |= {"3"}  # of idem check: cannot tell
    seen = 0
    for document in documents():
        for name in re.findall(r"\b[345]\d\d `([a-z]+(?:-[a-z]+)*)`", text(document)):
            assert name in problems, (document, name)
            seen += 1
        for code in re.findall(r"(?:[Ee]xit code|退出码)[^\d\n|]{0,3}(\d+)", text(document)):
            assert code in codes, (document, code)
            seen += 1
    assert len(problems) > 30 and seen > 30
