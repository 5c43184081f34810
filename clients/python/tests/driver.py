"""The conformance driver of the Python client: see clients/conformance/README.md. driver.py [psycopg|psycopg2|django|pymysql] URL"""
import contextlib
import json
import os
import signal
import sys
import threading
import time
from urllib.parse import urlsplit

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import idem  # noqa: E402
import idem.sql  # noqa: E402

CLASSES = [(idem.Done, "done"), (idem.NotExecuted, "not_executed"), (idem.InProgress, "in_progress"),
           (idem.OutcomeUnknown, "unknown")]
DRIVER = sys.argv[1]
client = idem.Client(sys.argv[-1])
output = threading.Lock()


def add_line(path, text):
    with open(path, "a") as f:
        f.write("%s\n" % text)


def work(steps, ran, db=None):
    ran.append(True)
    for step in steps:
        if "sql" in step:
            execute(db, step["sql"])
        elif "append" in step:
            fence = idem.current().fence if idem_runs() else 0
            add_line(step["append"], fence)
        elif "sleep_ms" in step:
            time.sleep(step["sleep_ms"] / 1000)
        elif "await_loss_ms" in step:
            lost = idem.current().lost.wait(step["await_loss_ms"] / 1000)
            add_line(step["file"], "lost" if lost else "kept")
        elif "die" in step:
            os.kill(os.getpid(), signal.SIGKILL)
        elif "return" in step:
            return step["return"]
        elif "return_text" in step:
            return "x" * step["return_text"]
        elif "raise" in step:
            name, message = step["raise"]
            raise type(name, (Exception,), {})(message)
        elif "redeem" in step:
            client.redeem(step["redeem"], idem.current().scope)
        elif "not_executed" in step:
            raise idem.NotExecuted("nothing happened")
        elif "unknown" in step:
            raise idem.OutcomeUnknown("who knows")
    return None


def idem_runs():
    try:
        return idem.current() is not None
    except RuntimeError:
        return False


def execute(db, text):
    with contextlib.closing(db.cursor()) as cursor:
        cursor.execute(text)


def options_of(command):
    o = command.get("options", {})
    options = {k[:-3]: o[k] / 1000 for k in ("lease_ms", "ttl_ms", "wait_ms", "deadline_ms") if k in o}
    options.update({k: o[k] for k in ("mode", "fail_open") if k in o}, token=command.get("token", False), scope=command["scope"])
    if "arguments" in command:
        options["arguments"] = command["arguments"]
    return options


def answer_of(command, call, db=None):
    ran, answer = [], {}
    try:
        answer["value"] = call(command["key"], lambda: work(command["work"], ran, db), **options_of(command))
        answer["class"] = "done"
    except Exception as e:
        answer.update(told(e))
    return {**answer, "ran": bool(ran)}


def connect(url, autocommit):
    u = urlsplit(url)
    where = {"host": u.hostname, "port": u.port, "user": u.username, "password": u.password}
    if DRIVER == "pymysql":
        import pymysql
        return pymysql.connect(**where, database=u.path[1:], autocommit=autocommit, charset="utf8mb4")
    if DRIVER == "psycopg":
        import psycopg
        return psycopg.connect(**where, dbname=u.path[1:], autocommit=autocommit)
    if DRIVER == "psycopg2":
        import psycopg2
        db = psycopg2.connect(**where, dbname=u.path[1:])
        db.autocommit = autocommit
        return db
    from django.conf import settings
    from django.db import connections
    with output:
        if not settings.configured:
            settings.configure(USE_TZ=True, DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": u.path[1:],
                                                                   **{k.upper(): v for k, v in where.items()}}})
    db = connections.create_connection("default")
    db.ensure_connection()
    db.set_autocommit(autocommit)
    return db


def transaction(command):
    """The caller's own one is begun by a statement on psycopg and PyMySQL, and by a connection without auto-commit on the others."""
    end = command.get("end")
    by_statement = end and DRIVER in ("psycopg", "pymysql")
    with contextlib.closing(connect(command["database"], autocommit=not end or by_statement)) as db:
        if DRIVER == "pymysql" and end:
            execute(db, "set transaction isolation level read committed")
        if by_statement:
            execute(db, "begin")
        answer = answer_of(command, lambda *args, **options: idem.sql.once(db, *args, **options), db)
        if end:
            execute(db, end) if by_statement else getattr(db, end)()
        return answer


def told(e):
    answer = {"class": next((name for kind, name in CLASSES if isinstance(e, kind)), "error"), "error": type(e).__name__,
              "type": type(e).__name__, "message": str(e)}
    if idem.sql.is_undone(e):
        answer["deadlock"] = True
    if isinstance(e, idem.Failed):
        answer.update(type=e.type, message=e.message)
    return answer


def perform(command):
    try:
        if command["op"] == "once":
            answer = answer_of(command, client.once)
        elif command["op"] == "transaction":
            answer = transaction(command)
        elif command["op"] == "issue":
            answer = {"class": "done", "value": client.issue(command["subject"])}
        elif command["op"] == "redeem":
            client.redeem(command["token"], command["subject"])
            answer = {"class": "done", "value": "redeemed"}
        else:
            answer = {"class": "done", "value": idem.fingerprint(command["arguments"])}
    except Exception as e:
        answer = told(e)
    with output:
        print(json.dumps({"id": command["id"], **answer}), flush=True)


def main():
    threads = []
    for line in sys.stdin:
        threads.append(threading.Thread(target=perform, args=(json.loads(line),)))
        threads[-1].start()
    for thread in threads:
        thread.join()


main()
