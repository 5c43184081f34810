"""Run a file of pytest, or a fuzz target, and count what it did: for tests/run and tests/soak."""
import os
import re
import signal
import subprocess
import xml.etree.ElementTree as xml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def execute(argv, env, seconds, cwd=ROOT):
    """Run it with everything it starts, and end all of that when time is up. Returns its exit code and its output."""
    process = subprocess.Popen(argv, cwd=cwd, env={**os.environ, **env}, start_new_session=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        out, _ = process.communicate(timeout=seconds)
        return process.returncode, out.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        return -1, out.decode(errors="replace") + "\ntimed out after %d s" % seconds
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def run_pytest(path, report, env, seconds, *args):
    """How many tests of a file passed, how many failed or were skipped, and the output."""
    report = os.path.join(ROOT, "build/reports", report + ".xml")
    os.makedirs(os.path.dirname(report), exist_ok=True)
    if os.path.exists(report):
        os.remove(report)
    code, out = execute(["/usr/bin/python3", "-m", "pytest", "-q", "-rs", "--tb=short", "-p", "no:cacheprovider",
                         "--durations=5", "--junit-xml", report, path, *args],
                        {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.path.join(ROOT, "tests/support"), **env}, seconds)
    good, bad = 0, 1
    if os.path.exists(report):
        suite = xml.parse(report).getroot().find("testsuite")
        number = lambda key: int(suite.get(key) or 0)
        bad = number("failures") + number("errors") + number("skipped")  # a skipped test is a failure
        good = number("tests") - bad
        bad = bad if bad or code == 0 else 1
    return good, bad, out


def run_fuzz_target(name, seconds, *flags):
    """The exit code of a fuzz target, how many inputs it tried, and the output."""
    corpus = os.path.join(ROOT, "build/corpus", name)
    kept = os.path.join(ROOT, "tests/support/corpus", os.path.basename(name))
    os.makedirs(corpus, exist_ok=True)
    code, out = execute([os.path.join(ROOT, "build/fuzz", name), *flags, "-max_len=8192", "-rss_limit_mb=2048",
                         "-print_final_stats=1", corpus, *([kept] if os.path.isdir(kept) else [])],
                        {}, seconds, os.path.join(ROOT, "build"))
    runs = re.findall(r"number_of_executed_units: (\d+)", out)
    return code, int(runs[0]) if runs else 0, out
