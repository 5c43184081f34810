"""idem.sql on a real database: python sql.py DRIVER PORT. Prints "passed" and a name for each test."""
import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import idem  # noqa: E402
import idem.sql  # noqa: E402

DRIVER, PORT = sys.argv[1], int(sys.argv[2])


def connect(autocommit=True):
    if DRIVER == "psycopg":
        import psycopg
        return psycopg.connect(host="127.0.0.1", port=PORT, user="idem", password="secret", dbname="postgres", autocommit=autocommit)
    if DRIVER == "psycopg2":
        import psycopg2
        db = psycopg2.connect(host="127.0.0.1", port=PORT, user="idem", password="secret", dbname="postgres")
        db.autocommit = autocommit
        return db
    if DRIVER == "pymysql":
        import pymysql
        return pymysql.connect(host="127.0.0.1", port=PORT, user="idem", password="secret", database="shop", autocommit=autocommit,
                               charset="utf8mb4")
    from django.db import connections
    db = connections.create_connection("default")
    db.ensure_connection()
    db.set_autocommit(autocommit)
    return db


def do(db, text):
    with db.cursor() as c:
        c.execute(text)
        return c.fetchone()[0] if c.description else None


def pay(db):
    do(db, "update account set n = n - 1")
    return do(db, "select n from account")


def now():
    db = connect()
    try:
        return do(db, "select n from account")
    finally:
        db.close()


def once(db, key, work=None, arguments=("book", 1), **options):
    return idem.sql.once(db, key, work or (lambda: pay(db)), scope="sql-" + DRIVER, arguments=arguments, **options)


def fails(kind, work):
    try:
        work()
    except kind as e:
        return e
    raise AssertionError("no %s was raised" % kind.__name__)


def paid_and(db, error):
    def work():
        pay(db)
        assert idem.current().fence > 0
        raise error
    return work


def test_many_callers_have_one_effect_and_one_answer(db):
    before, answers = now(), []

    def call():
        mine = connect()
        while True:
            try:
                answers.append(once(mine, "one"))
                return mine.close()
            except idem.InProgress as e:
                time.sleep(e.retry_after)
            except Exception as e:
                if not idem.sql._is_undone(e):
                    raise

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert answers == [before - 1] * 6 and now() == before - 1, answers


def test_a_strict_failure_is_kept_and_its_changes_are_not(db):
    before = now()
    fails(ArithmeticError, lambda: once(db, "fail", paid_and(db, ArithmeticError("out of stock"))))
    failed = fails(idem.Failed, lambda: once(db, "fail"))
    assert (failed.type, failed.message) == ("ArithmeticError", "out of stock")
    fails(Exception, lambda: once(db, "sql", lambda: do(db, "update no_such_table set n = 1")))
    fails(idem.Failed, lambda: once(db, "sql"))
    assert now() == before


def test_a_loose_failure_and_not_executed_leave_nothing(db):
    before = now()
    fails(KeyError, lambda: once(db, "loose", paid_and(db, KeyError("later")), mode="loose"))
    assert once(db, "loose", mode="loose") == before - 1
    fails(idem.NotExecuted, lambda: once(db, "not", paid_and(db, idem.NotExecuted("not now"))))
    assert once(db, "not") == before - 2
    fails(idem.NotExecuted, lambda: once(db, "unwritable", lambda: pay(db) and object()))
    assert now() == before - 2


def test_an_unknown_outcome_keeps_the_claim(db):
    before = now()
    fails(idem.OutcomeUnknown, lambda: once(db, "unknown", paid_and(db, idem.OutcomeUnknown("the bank did not answer"))))
    fails(idem.InProgress, lambda: once(db, "unknown"))
    assert now() == before


def test_other_arguments_are_a_mismatch_and_none_are_refused(db):
    assert once(db, "mismatch 书", lambda: {"名": "书"}) == once(db, "mismatch 书") == {"名": "书"}
    fails(idem.Mismatch, lambda: once(db, "mismatch 书", arguments="another"))
    fails(ValueError, lambda: idem.sql.once(db, "none", lambda: 1))


def test_in_the_callers_transaction_the_caller_decides(db):
    before = now()
    mine = connect(autocommit=False)
    once(mine, "mine")
    mine.rollback()
    assert now() == before
    once(mine, "mine")
    fails(KeyError, lambda: once(mine, "mine too", paid_and(mine, KeyError("kept"))))
    assert now() == before
    mine.commit()
    assert once(mine, "mine") == before - 1
    fails(idem.Failed, lambda: once(mine, "mine too"))
    mine.rollback()
    mine.close()
    assert now() == before - 1


def test_a_transaction_that_the_caller_opened_on_auto_commit_is_the_callers(db):
    before = now()
    if DRIVER == "django":
        from django.db import transaction
        with transaction.atomic():
            from django.db import connection
            once(connection, "opened")
            transaction.set_rollback(True)
    else:
        do(db, "begin")
        once(db, "opened")
        do(db, "rollback")
    assert now() == before


def main():
    if DRIVER == "django":
        from django.conf import settings
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": PORT,
                                                  "USER": "idem", "PASSWORD": "secret", "NAME": "postgres"}}, USE_TZ=True)
    db = connect()
    do(db, "drop table if exists account")
    do(db, "create table account (n bigint)")
    do(db, "insert into account values (1000)")
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test(db)
            print("passed", name, flush=True)


main()
