// Work and its record in one transaction of the caller's own database: both commit or neither. It needs no server, only the functions
// that `idem store init URL` installs (docs/sql/README.md), in PostgreSQL (pg) or MariaDB and MySQL (mysql2/promise).
import {checkWork, choose, Claim, DEFAULTS, failure, fingerprint, found, replayed, storage} from "./client.js";
import {LeaseLost, NotExecuted, OutcomeUnknown} from "./errors.js";

const BUSY_MS = 100;

/** A deadlock, a serialization failure or a lost connection has undone the claim as well. */
function isUndone(error) {
    for (let e = error; e; e = e.cause)
        if (/^(40|08)/.test(e.sqlState ?? e.code ?? "") || [1205, 1213, 1020].includes(e.errno)) return true;
    return false;
}

const postgres = {
    async begin(db, o, key) {
        const {rows: [row]} = await db.query("select verdict, fence, kind, result, state from idem.begin($1, $2, $3, $4, $5, $6, $7)",
            [o.scope, key, print(o), o.mode, o.lease, o.ttl, o.wait]);
        return row;
    },
    async finish(db, {scope, key, fence, options}, state, result) {
        const {rows: [row]} = await db.query("select idem.try_finish($1, $2, $3, $4, $5, $6) as verdict", [scope, key, fence, state, result, options.ttl]);
        return row.verdict;
    },
    release: (db, {scope, key, fence}) => db.query("select idem.release($1, $2, $3)", [scope, key, fence]),
    connect: (pool) => pool.connect(),
    start: (db) => db.query("begin isolation level read committed"),
};

const mysql = {
    async begin(db, o, key) {
        const name = [Buffer.from(o.scope), Buffer.from(key)];
        await db.query("call idem_begin(?, ?, ?, ?, ?, ?, @idem_v, @idem_f, @idem_k, @idem_r)", [...name, print(o), o.mode, o.lease, o.ttl]);
        const [[row]] = await db.query("select @idem_v as verdict, @idem_f as fence, @idem_k as kind, @idem_r as result");
        if (row.verdict !== "replay") return row;
        await db.query("call idem_get(?, ?, @idem_v, @idem_s, @idem_f, @idem_k, @idem_g)", name);
        const [[{state}]] = await db.query("select @idem_s as state");
        return {...row, state};
    },
    async finish(db, {scope, key, fence, options}, state, result) {
        await db.query("call idem_try_finish(?, ?, ?, ?, ?, ?, 'raw', @idem_v)", [Buffer.from(scope), Buffer.from(key), fence, state, result, options.ttl]);
        const [[row]] = await db.query("select @idem_v as verdict");
        return row.verdict;
    },
    release: (db, {scope, key, fence}) => db.query("call idem_release(?, ?, ?, @idem_v)", [Buffer.from(scope), Buffer.from(key), fence]),
    connect: (pool) => pool.getConnection(),
    async start(db) {
        await db.query("set transaction isolation level read committed");
        await db.query("start transaction");
    },
};

const print = (options) => Buffer.from(fingerprint(options.arguments), "hex");

function check(work, options) {
    checkWork(work);
    if (!("arguments" in options))
        throw new TypeError("give arguments: without them a key that is used for another request is not noticed");
    return choose(DEFAULTS, options);
}

/**
 * Run `work(db)` at most once, in a transaction of its own on a connection of the pool: a Pool of pg, or of mysql2/promise. The database's
 * own errors go through: after a deadlock (code 40001, 40P01; errno 1213, 1205, 1020) call it again.
 */
export async function sqlOnce(pool, key, work, options) {
    const o = check(work, options), sql = typeof pool.getConnection === "function" ? mysql : postgres;
    const db = await sql.connect(pool);
    let clean = false;
    try {
        await sql.start(db);
        const outcome = await guarded(sql, db, key, work, o);
        if (outcome.keep) await commit(db, `${o.scope}/${key}`);
        clean = outcome.keep;
        return result(outcome);
    } finally {
        if (!clean) clean = await db.query("rollback").then(() => true, () => false);
        if (clean) db.release();
        else if (db.destroy) db.destroy();
        else db.release(true);
    }
}

/**
 * The same as a part of your own transaction on this connection. Commit it; after an error of the work too, if the failure shall be kept:
 * what the work changed is undone to a savepoint then.
 */
export async function sqlOnceTx(db, key, work, options) {
    return result(await guarded(typeof db.beginTransaction === "function" ? mysql : postgres, db, key, work, check(work, options)));
}

function result(outcome) {
    if ("error" in outcome) throw outcome.error;
    return outcome.value;
}

/** {value} or {error}, and whether it is to be kept: committed. */
async function guarded(sql, db, key, work, o) {
    const row = await sql.begin(db, o, key), where = `${o.scope}/${key}`;
    if (row.verdict !== "started") {
        const stored = found(row.verdict, BUSY_MS, row, o.scope, key);
        try { // an answer of a standby's primary counts when the transaction that read it is committed: so this one is, too
            return {value: replayed(stored, o, where), keep: true};
        } catch (error) {
            return {error, keep: true};
        }
    }
    const claim = new Claim(null, key, o, Number(row.fence), 0);
    await db.query("savepoint idem_work");
    let value;
    try {
        value = await storage.run(claim, () => work(db, claim));
    } catch (error) {
        return {error, keep: !isUndone(error) && await conclude(sql, db, claim, error).catch(() => false)};
    }
    let written;
    try {
        written = Buffer.from(o.dump(value));
    } catch (error) { // it is not committed: nothing has happened
        throw new NotExecuted(`the result of ${where} cannot be written`, {cause: error});
    }
    const verdict = await sql.finish(db, claim, "succeeded", written);
    if (verdict !== "ok") throw new LeaseLost(`somebody else decided about ${where} meanwhile (${verdict})`);
    return {value, keep: true};
}

/** Undo what the work changed; record its failure, keep the claim, or give the key back. */
async function conclude(sql, db, claim, error) {
    const unknown = error instanceof OutcomeUnknown;
    const keep = !(error instanceof NotExecuted) && (claim.options.mode === "strict" || unknown);
    await db.query("rollback to savepoint idem_work");
    if (!keep) await sql.release(db, claim);
    else if (!unknown) await sql.finish(db, claim, "failed", Buffer.from(failure(error)));
    return keep;
}

async function commit(db, where) {
    try {
        await db.query("commit");
    } catch (error) {
        const answered = (error.severity === "ERROR" || error.sqlState && !error.fatal) && !/^08/.test(error.sqlState ?? error.code);
        if (answered) throw error;
        throw new OutcomeUnknown(`the reply to commit was lost: ask idem.get for ${where}`, {cause: error});
    }
}
