"""Run work once, with its record in your own database transaction: both commit or neither. It needs no server.

It works on a connection of psycopg, psycopg2, PyMySQL or Django, after `idem store init URL` (docs/sql/README.md).
"""
import contextlib
from typing import Any, Callable, Mapping, Sequence, Tuple, TypeVar

from .claim import NOTHING, Claim, Options, Stored, check_work, fingerprint, is_unknown, log, refusal, stale, told
from .client import entered
from .errors import NotExecuted, OutcomeUnknown

T = TypeVar("T")
DRIVERS = ("psycopg", "psycopg2", "pymysql", "django")


def once(connection: Any, key: str, work: Callable[[], T], *, arguments: Any = NOTHING, **options: Any) -> T:
    """Run the work at most once for the key, on this connection.

        order = idem.sql.once(db, "order-7", lambda: place_order(db, cart), scope="shop", arguments=cart)

    Where no transaction is open, and the connection has auto-commit, the call is a transaction of its own. Otherwise it is a part of
    yours: commit it, after a failure of the work too, if the failure shall be kept. After a deadlock run the transaction again.
    """
    if arguments is NOTHING:
        raise ValueError("give arguments=...: without them a key that is used for another request is not noticed")
    check_work(work)
    return _Once(connection, key, Options().but(**options), arguments).run(work)


def _code(error: BaseException) -> Tuple[str, int]:
    """SQLSTATE and the number of MariaDB; of the driver's error, where a framework has wrapped it."""
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        if state or number:
            return state, number
        error = error.__cause__  # type: ignore[assignment]
    return "", 0


def is_undone(error: BaseException) -> bool:
    """A deadlock, a serialization failure or a lost connection: the transaction has to run again."""
    state, number = _code(error)
    return state[:2] in ("40", "08") or state[:4] == "57P0" or number in (1020, 1205, 1213, 2006, 2013)


class _Once:
    def __init__(self, connection, key, options, arguments):
        self.db, self.key, self.options, self.arguments = connection, key, options, arguments
        driver = next((d for c in type(connection).__mro__ for d in DRIVERS if c.__module__.split(".")[0] == d), None)
        if driver is None:
            raise TypeError("%r is not a connection of psycopg, psycopg2, PyMySQL or Django: pass one of those" % connection)
        self.django, self.keeps = driver == "django", False
        self.maria = driver == "pymysql" or self.django and connection.vendor == "mysql"
        if self.django:
            self.own = connection.get_autocommit()
        elif self.maria:
            self.own = connection.get_autocommit() and not connection.server_status & 1
        else:
            self.own = connection.autocommit and connection.info.transaction_status == 0

    def _do(self, text: str, *values: Any) -> Sequence[Any]:
        cursor = self.db.cursor()
        try:
            cursor.execute(text, values or None)
            row = cursor.fetchone() if cursor.description else ()
        finally:
            cursor.close()
        return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)

    def run(self, work):
        if not self.own:
            return self._guarded(work)
        with self._transaction():
            try:
                return self._guarded(work)
            except BaseException as e:
                if not self.keeps:
                    raise
                error = e
        raise error  # its record is committed

    @contextlib.contextmanager
    def _transaction(self):
        if self.maria:
            self._do("set transaction isolation level read committed")
        if self.django:
            self.db.set_autocommit(False)
        else:
            self._do("begin")
        try:
            yield
            self._commit()
        except BaseException:
            with contextlib.suppress(Exception):  # the connection may be gone, and the transaction with it
                self.db.rollback() if self.django else self._do("rollback")
            raise
        finally:
            if self.django:
                self.db.set_autocommit(True)

    def _commit(self):
        try:
            self.db.commit() if self.django else self._do("commit")
        except Exception as e:
            state, number = _code(e)
            if not state and not number or state[:2] == "08" or state[:4] == "57P0" or number in (2006, 2013):
                raise OutcomeUnknown("the reply to commit was lost: ask idem.get for %s/%s" % (self.options.scope, self.key)) from e
            raise

    def _guarded(self, work):
        if not self.own:
            self._do("savepoint idem_claim")
        got = self._begin()
        if isinstance(got, Stored):
            self.keeps = True  # a failure is told after the commit, too: on PostgreSQL the commit waits for the standby
            return got.value(self.options, self.key)
        self._do("savepoint idem_work")
        try:
            with entered(got):
                value = work()
            result = self._written(got, value)
        except BaseException as e:
            try:
                self._failed(got, e)
            except Exception as second:  # the connection may be gone, and the claim with it
                log.error("the failure of %s could not be recorded: %s", got, second)
            raise
        self._finish(got, "succeeded", result)
        return value

    def _written(self, claim, value):
        try:
            return self.options.dump(value)
        except Exception as e:  # it is not committed: nothing has happened
            raise NotExecuted("the result of %s cannot be written: %s" % (claim, e)) from e

    def _failed(self, claim, error):
        """What certainly did not happen, or may be tried again, leaves nothing."""
        if is_undone(error):
            return
        if isinstance(error, NotExecuted) or self.options.mode == "loose" and not is_unknown(error):
            if not self.own:
                self._do("rollback to savepoint idem_claim")
            return
        self._do("rollback to savepoint idem_work")
        if not is_unknown(error):
            self._finish(claim, "failed", told(error))
        self.keeps = True

    def _begin(self):
        o, digest = self.options, bytes.fromhex(fingerprint(self.arguments))
        times = int(o.lease * 1000), int(o.ttl * 1000)
        state = None
        if self.maria:
            self._do("call idem_begin(%s, %s, %s, %s, %s, %s, @idem_v, @idem_f, @idem_k, @idem_r)",
                     o.scope.encode(), self.key.encode(), digest, o.mode, *times)
            verdict, fence, kind, result = self._do("select @idem_v, @idem_f, @idem_k, @idem_r")
            if verdict == "replay":
                self._do("call idem_get(%s, %s, @idem_v, @idem_s, @idem_f, @idem_k, @idem_x)", o.scope.encode(), self.key.encode())
                state, = self._do("select @idem_s")
        else:
            verdict, fence, kind, result, state = self._do(
                "select verdict, fence, kind, result, state from idem.begin(%s, %s, %s, %s, %s, %s, %s)",
                o.scope, self.key, digest, o.mode, *times, int(o.wait * 1000))
        if verdict == "started":
            return Claim(self.key, o, fence)
        if verdict == "replay":
            return Stored(state, kind, None if result is None else bytes(result))
        raise refusal(verdict, o.scope, self.key, 0.1)

    def _finish(self, claim, state, result):
        ttl = int(self.options.ttl * 1000)
        if self.maria:
            self._do("call idem_try_finish(%s, %s, %s, %s, %s, %s, 'raw', @idem_v)",
                     claim.scope.encode(), claim.key.encode(), claim.fence, state, result, ttl)
            verdict, = self._do("select @idem_v")
        else:
            verdict, = self._do("select idem.try_finish(%s, %s, %s, %s, %s, %s)", claim.scope, claim.key, claim.fence, state, result, ttl)
        if verdict != "ok":
            raise stale(claim, verdict)
