#!/usr/bin/python3
"""Change the code in small ways and see that the tests notice: tests/mutate/mutate.py [FILE...]

  --sample N    N mutants of each file, chosen by --seed (1)
  --jobs N      at a time (2)
  --seconds N   start no mutant after that time; the next run goes on
  --list        print the mutants, run nothing
  --all         try again what an earlier run has tried, and what survivors.txt explains

Each mutant of a file (mutants.py) is compiled and given to the tests of that file, until one of them fails (killed). A test is
linked once with a shared object in the place of that file, and runs with each mutant's. First comes the test that killed the
last mutant of the same function, then the others, the quickest first. A test program ends at its first failure. It may take 5
times the CPU time that it takes without a change, and 10 times the wall-clock time, and some seconds. The tree and the programs
in build/ stay as they are; all files lie in build/mutate. The result of each mutant is kept, so that a run can be stopped and
the next one goes on. A mutant that was killed is not tried again until its function changes, one that survived not until a test
changes. survivors.txt explains the mutants that no test can notice; an entry that fits no mutant is an error.

The exit code is 1 if fewer than 95 of 100 mutants were killed or a survivor is not explained.
"""
import argparse
import collections
import concurrent.futures
import fcntl
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from mutants import mutants, one_line

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, "build/mutate")
NEEDED = 95
SIMULATE = "tests/sim/simulate"
ENGINE = ["src/engine/%s_test" % name
          for name in ("time", "time_bounds", "commit", "group", "engine", "engine_fault", "batch", "sealed", "claims", "quota", "park", "epoch", "engine_alloc")]
JOURNAL = ["src/store/journal/%s_test" % name
           for name in ("recover", "walk", "saved", "tail", "load", "life", "clock", "journal_check", "journal_copy", "crash", "journal_alloc", "journal", "journal_fault", "folder")]
# file: the tests that know it
TESTS = {
    "src/record/step.c": ["src/record/step_test", "src/record/lives_test", "src/engine/engine_test", "src/engine/time_test", SIMULATE],
    **{"src/engine/%s.c" % name: [*ENGINE, "tests/c/sweep_test", SIMULATE] for name in ("batch", "group", "commit", "time")},
    **{"src/store/journal/%s.c" % name: [*JOURNAL, SIMULATE] for name in ("recover", "saved", "load", "tail", "walk")},
}
ARGUMENTS = {SIMULATE: ["--seed", "1", "--runs", "20", "--quick"]}
FIRST_WALL, FIRST_CPU = 300, 100  # seconds for a test without a change


def made():
    out = subprocess.run(["make", "-s", "print-simulate"], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout
    return {name: value.split() for name, value in re.findall(r"^(\S+): (.*)$", out, re.M)}


def digest(*parts):
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def identity(path, mutant):
    """Of a mutant, as long as the text of its function is the same. The parts outside of functions count as well."""
    return digest(path, mutant.function, mutant.own)


def survivors():
    """survivors.txt: (file, function, before, after) -> why"""
    known, path, where = {}, None, None
    with open(os.path.join(HERE, "survivors.txt")) as f:
        text = f.read()
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if not lines:
            continue
        m = re.fullmatch(r"(\S+) (\w+)\n- ([^\n]*)\n((?:\+ [^\n]*\n)+)(.*)", "\n".join(lines), re.S)
        if not m:
            sys.exit("mutate: survivors.txt: this is no entry:\n" + block)
        for after in re.findall(r"^\+ (.*)$", m.group(4), re.M):
            known[m.group(1), m.group(2), m.group(3), after] = one_line(m.group(5))
    return known


class Results:
    """A line of JSON for each mutant that was tried; several runs may add to it."""

    def __init__(self):
        self.path = os.path.join(BUILD, "results.jsonl")
        self.known = {}
        if os.path.exists(self.path):
            with open(self.path) as f:
                for line in f:
                    entry = json.loads(line)
                    self.known[entry["id"]] = entry

    def add(self, entry):
        self.known[entry["id"]] = entry
        with open(self.path, "a") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            f.write(json.dumps(entry) + "\n")


def unhide(path):
    """Make the hidden symbols of an object file visible, so that a shared object can use them."""
    with open(path, "rb") as f:
        data = bytearray(f.read())
    sections, = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    for i in range(count):
        kind, _, _, offset, length = struct.unpack_from("<IQQQQ", data, sections + i * size + 4)
        if kind == 2:  # the symbol table: an entry has 24 bytes, the sixth is the visibility
            for at in range(offset + 5, offset + length, 24):
                data[at] &= ~3 & 0xFF
    with open(path, "wb") as f:
        f.write(data)


class Runner:
    def __init__(self, folder, path):
        self.folder, self.path, self.made = folder, path, made()
        self.inner = os.path.join(folder, "inner")
        os.makedirs(self.inner)
        self.archive = next(word for word in self.made["test-link"] if word.endswith(".a"))
        self.programs, self.limits, self.order, self.killer, rest = {}, {}, TESTS[path], {}, []
        for name in self.made["inner"]:
            if name.endswith(path[:-1] + "o"):
                continue
            rest.append(os.path.join(self.inner, name.replace("/", "_")))
            shutil.copyfile(os.path.join(ROOT, name), rest[-1])
            unhide(rest[-1])
        subprocess.run(["ar", "rcs", os.path.join(self.inner, "rest.a"), *rest], check=True)

    def compile(self, source, where):
        """The object's bytes, or None if it does not compile. -g would tell mutants apart that are the same."""
        c, o, so = (os.path.join(where, name) for name in (os.path.basename(self.path), "mutant.o", "libmutant.so"))
        with open(c, "w") as f:
            f.write('#line 1 "%s"\n%s' % (self.path, source))
        quiet = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if subprocess.run([*self.made["compile"], "-fvisibility=default", "-g0", "-w", "-iquote", os.path.dirname(self.path), "-c", c, "-o", o], **quiet).returncode != 0:
            return None
        subprocess.run([self.made["link"][0], "-shared", "-Wl,-soname,libmutant.so", "-o", so, o], check=True, **quiet)
        with open(o, "rb") as f:
            return f.read()

    def own_link(self, test):
        return test == SIMULATE or test.endswith("_alloc_test")  # calls of the library are bound when it is linked

    def link(self, test, where):
        """The test with the mutant of this folder inside, or for all mutants."""
        program = os.path.join(where, os.path.basename(test))
        objects, link = (self.made["objects"], self.made["link"]) if test == SIMULATE else (
            ["build/obj/%s.o" % test, *self.made["test-objects"]], [*self.made["test-link"], *(self.made["alloc-link"] if self.own_link(test) else [])])
        mutant = [os.path.join(where, "mutant.o")]
        if not self.own_link(test):
            link = [word for word in link if word != self.archive]
            mutant = ["-rdynamic", "-Wl,--no-as-needed", os.path.join(where, "libmutant.so"), os.path.join(self.inner, "rest.a")]
        subprocess.run([link[0], "-Wl,-S", "-o", program, *objects, *mutant, *link[1:]], cwd=ROOT, check=True)
        return program

    def run(self, test, where):
        """None if the test passes, else why not."""
        program = self.programs.get(test) or self.link(test, where)
        own = os.path.join(where, "tmp")
        os.makedirs(own, exist_ok=True)
        wall, cpu = self.limits.get(test, (FIRST_WALL, FIRST_CPU))
        process = subprocess.Popen([program, *ARGUMENTS.get(test, [])], cwd=ROOT,
                                   env={**os.environ, "TMPDIR": own, "IDEM_TEST_SEED": "1", "LD_LIBRARY_PATH": where, "CMOCKA_TEST_ABORT": "1"},
                                   start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   preexec_fn=lambda: limits(cpu))
        try:
            code = process.wait(wall)
        except subprocess.TimeoutExpired:
            code = "time"
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        shutil.rmtree(own, ignore_errors=True)
        return None if code == 0 else str(code)

    def tests_digest(self):
        parts = []
        for test in TESTS[self.path]:
            for o in self.made["objects"] if test == SIMULATE else ["build/obj/%s.o" % test, *self.made["test-objects"]]:
                with open(os.path.join(ROOT, o), "rb") as f:
                    parts.append(hashlib.sha256(f.read()).hexdigest())
        return digest(*parts)

    def try_mutant(self, mutant, original, tests):
        where = tempfile.mkdtemp(dir=self.folder)
        entry = {"id": identity(self.path, mutant), "tests": tests, "state": "survived"}
        try:
            built = self.compile(mutant.source, where)
            if built is None or built == original:
                entry["state"] = "no C" if built is None else "same code"
                return entry
            last = self.killer.get(mutant.function)
            for test in sorted(self.order, key=lambda test: test != last):
                why = self.run(test, where)
                if why is not None:
                    entry.update(state="killed", by=test, code=why)
                    self.killer[mutant.function] = test
                    break
            return entry
        finally:
            shutil.rmtree(where, ignore_errors=True)

    def baseline(self, source):
        """Link the tests; all of them pass without a change, and their times are the measure. Returns the object to compare with."""
        where = tempfile.mkdtemp(dir=self.folder)
        original = self.compile(source, where)
        took = {}
        for test in TESTS[self.path]:
            if not self.own_link(test):
                self.programs[test] = self.link(test, where)
            start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            why = self.run(test, where)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if why is not None:
                sys.exit("mutate: %s fails (%s) without a change of %s: repair that first" % (test, why, self.path))
            took[test] = time.monotonic() - start
            self.limits[test] = 20 + 10 * took[test], int(5 + 5 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
        self.order = sorted(took, key=took.get)
        return original


def limits(cpu):
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def work(args, path, chosen, results, end, known):
    with open(os.path.join(ROOT, path)) as f:
        source = f.read()
    folder = tempfile.mkdtemp(dir=BUILD)
    try:
        runner = Runner(folder, path)
        tests = runner.tests_digest()
        left = []
        for mutant in chosen:
            entry = results.known.get(identity(path, mutant))
            if not args.all and (path, mutant.function, mutant.before, mutant.after) in known:
                continue
            if args.all or not entry or (entry["state"] == "survived" and entry["tests"] != tests):
                left.append(mutant)
        if not left:
            return
        original = runner.baseline(source)

        def one(mutant):
            if time.monotonic() > end:
                return
            entry = runner.try_mutant(mutant, original, tests)
            results.add(entry)
            if entry["state"] == "survived":
                print("survived %s:%d %s\n- %s\n+ %s" % (path, mutant.line, mutant.function, mutant.before, mutant.after), flush=True)

        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for number, _ in enumerate(pool.map(one, left), 1):
                if number % 25 == 0:
                    print("%s: %d of %d" % (path, number, len(left)), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(all_chosen, results, known):
    """Print it; true if enough were killed and all survivors are explained."""
    good = True
    print("\n| File | Mutants | Killed | | Survived, explained | Survived | Not tried |\n| --- | --: | --: | --: | --: | --: | --: |")
    total = collections.Counter()
    for path, chosen in [*all_chosen.items(), ("all", None)]:
        count = collections.Counter()
        for mutant in chosen or []:
            entry = results.known.get(identity(path, mutant), {"state": "not tried"})
            explained = entry["state"] in ("survived", "not tried") and (path, mutant.function, mutant.before, mutant.after) in known
            count["explained" if explained else entry["state"]] += 1
        total += count
        count = total if chosen is None else count
        tried = count["killed"] + count["survived"] + count["explained"]
        share = 100 * count["killed"] / tried if tried else 0
        good = good and share >= NEEDED and count["survived"] == 0 and count["not tried"] == 0
        print("| `%s` | %d | %d | %.1f %% | %d | %d | %d |" % (path, tried, count["killed"], share, count["explained"], count["survived"], count["not tried"]))
    print("\nNot counted: %d changes that do not compile, %d that the compiler turns into the same code." % (total["no C"], total["same code"]))
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    files = [path for path in TESTS if not args.files or any(word in path for word in args.files)]
    if not files:
        sys.exit("mutate: none of the files is %s; the files are:\n%s" % (" ".join(args.files), "\n".join(TESTS)))
    os.makedirs(BUILD, exist_ok=True)
    end = time.monotonic() + args.seconds
    known, every = survivors(), {}
    for path in TESTS:
        with open(os.path.join(ROOT, path)) as f:
            every[path] = list(mutants(f.read()))
    fits = {(path, m.function, m.before, m.after) for path in every for m in every[path]}
    for entry in known:
        if entry not in fits:
            sys.exit("mutate: survivors.txt explains a mutant that is not there any more: %s %s\n- %s\n+ %s" % entry)
    chosen = {path: random.Random(args.seed).sample(every[path], min(args.sample or len(every[path]), len(every[path]))) for path in files}
    if args.list:
        for path in files:
            for m in chosen[path]:
                print("%s:%d %s\n- %s\n+ %s" % (path, m.line, m.function, m.before, m.after))
        return 0
    results = Results()
    for path in files:
        work(args, path, chosen[path], results, end, known)
    return 0 if table(chosen, results, known) else 1


sys.exit(main())
