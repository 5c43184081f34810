"""The Node client beyond the conformance scenarios: Express, Koa, Fastify, types, transactions, and the code of its pages."""
import contextlib
import os
import re
import subprocess
import tempfile

import pytest

from client_builds import NODE, RUN_NODE, node_packages
from lib import ROOT, Server, folder, free_port, wait_until
from middleware import (App, scenario_id, test_a_client_that_goes_away_does_not_stop_the_work, test_a_request_whose_body_ends_early_does_not_run,  # noqa: F401
                        test_an_upload_that_ends_early_can_be_sent_again, test_an_answer_without_content_is_replayed, test_another_boundary_of_a_form_is_the_same_request,
                        test_middleware_answers_as_the_gateway_does)
from test_stores_sql import idem, mariadb, postgres  # noqa: F401 (fixtures)
import transactions
from transactions import database  # noqa: F401 (a fixture)


@pytest.fixture(scope="module", params=["express", "koa", "fastify"])
def app(request):
    node_packages()
    with folder() as where:
        app = App(where, [*RUN_NODE, os.path.join(NODE, "tests/app.js"), request.param])
        yield app
        app.close()


@pytest.mark.parametrize("scenario", transactions.SCENARIOS, ids=scenario_id)
def test_work_in_the_callers_own_transaction(database, scenario):
    node_packages()
    transactions.play([*RUN_NODE, os.path.join(NODE, "tests/driver.js")], database, scenario)


def test_the_types_say_what_the_client_does():
    node_packages()
    done = subprocess.run(["node_modules/.bin/tsc", "--noEmit", "--strict", "--preserveSymlinks", "--module", "nodenext", "--target", "es2022", "--types",
                           "node", "tests/types.ts"], cwd=NODE, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_the_types_name_what_the_package_exports():
    with open(os.path.join(NODE, "src/index.d.ts")) as f:
        declared = set(re.findall(r"^export (?:class|function) (\w+)", f.read(), re.M))
    done = subprocess.run(["node", "--input-type=module", "-e", 'console.log(...Object.keys(await import("idem-client")))'], cwd=NODE,
                          capture_output=True, text=True, timeout=60)
    assert declared == set(done.stdout.split()), done


PAGE = """
const placeOrder = (cart) => ({id: String(++placed), total: 10 * cart.count});
let placed = 0;
%s
const post = async (port, key) => {
    const sent = await fetch(`http://127.0.0.1:${port}/orders`, {method: "POST", body: JSON.stringify(cart),
        headers: {"Content-Type": "application/json", "Idempotency-Key": key, "X-Tenant": "ann"}});
    return [sent.status, sent.headers.get("Idempotent-Replayed"), await sent.text()];
};
const fails = async (key, bank) => {
    const error = await client.once(key, () => pay(bank, cart)).catch((error) => error);
    return error.constructor.name;
};
try {
    const slow = async () => { throw new Error("cut off"); };
    const no = async () => { throw new Declined(); };
    const away = () => fetch("http://127.0.0.1:%d/");
    assert.deepEqual([await fails("slow", slow), await fails("slow", slow)], ["OutcomeUnknown", "InProgress"]);
    assert.deepEqual([await fails("no", no), await fails("no", no)], ["Declined", "Failed"]);
    assert.deepEqual([await fails("away", away), await fails("away", away)], ["NotExecuted", "NotExecuted"]);
    assert.equal(await client.once("away", () => pay(async () => 1, cart)), 1);
    assert.deepEqual(await client.once("order-7", () => "another", {arguments: cart}), order);
    assert.equal(second.stock, "2 books");
    assert.ok(second.fence > 0);
    assert.equal(answer.status, 201);
    const [status, replayed, text] = await post(8080, "order-11");
    assert.deepEqual([status, replayed, text], [201, "true", await answer.text()]);
    for (const port of [8081, 8082]) {
        const first = await post(port, "k" + port), again = await post(port, "k" + port);
        assert.deepEqual([first[0], first[1], again[1], again[2]], [200, null, "true", first[2]]);
    }
    assert.deepEqual(await sqlOnce(pool, "order-9", () => "another", {scope: "shop", arguments: cart}), paid);
    assert.equal((await pool.query("select count(*) from orders")).rows[0].count, "1");
    const [[rows]] = await maria.query("select count(*) as n from orders");
    assert.equal(rows.n, 1);
} catch (error) { // the servers of the page would keep the process alive
    console.error(error);
    process.exit(1);
}
console.log("the page works");
process.exit(process.exitCode ?? 0);
"""


def blocks(page):
    with open(os.path.join(ROOT, "clients/node", page), encoding="utf-8") as f:
        return re.findall(r"```js\n(.*?)```", f.read(), re.S)


def test_the_code_of_the_pages_works(postgres, mariadb):
    node_packages()
    code = blocks("README.md")
    assert code == blocks("README.zh-CN.md")
    # What starts the servers comes first, for the page asks one of them before it shows how it is started.
    code = [c for c in code if "import {Client}" in c] + [c for c in code if "listen(" in c] + [c for c in code if "import {Client}" not in c and "listen(" not in c]
    for database in (postgres, mariadb):
        idem("store", "init", database.url)
        database.sql("create table orders (item varchar(20), count int)")
    with folder() as where, Server(where, listen=True) as server, tempfile.NamedTemporaryFile("w", suffix=".mjs", dir=NODE, encoding="utf-8") as page:
        text = PAGE.replace("%d", str(free_port())) % "".join(code).replace('test("', 'await test("')
        for old, new in (("127.0.0.1:6390", "127.0.0.1:%d" % server.port), ("postgres://shop@127.0.0.1/shop", postgres.url),
                         ("mysql://shop:secret@127.0.0.1/shop", mariadb.url), *((str(port), str(free_port())) for port in (8080, 8081, 8082))):
            assert old in text
            text = text.replace(old, new)
        page.write(text)
        page.flush()
        done = subprocess.run([*RUN_NODE, page.name], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PATH": os.path.join(ROOT, "build") + ":" + os.environ["PATH"]})
        assert done.returncode == 0 and "the page works" in done.stdout, done.stdout + done.stderr


def test_the_package_has_what_it_needs():
    with folder() as where:
        subprocess.run(["npm", "pack", "--silent", "--pack-destination", where, os.path.join(ROOT, "clients/node")], check=True, timeout=120,
                       stdin=subprocess.DEVNULL, capture_output=True)
        subprocess.run("tar xf *.tgz && mkdir node_modules && mv package node_modules/idem-client", shell=True, cwd=where, check=True)
        names = set(os.listdir(where + "/node_modules/idem-client"))
        assert names == {"package.json", "LICENSE", "README.md", "README.zh-CN.md", "src"}
        done = subprocess.run(["node", "--input-type=module", "-e", 'import {Client} from "idem-client"; new Client(); console.log("fine")'], cwd=where,
                              capture_output=True, text=True, timeout=60)
        assert done.stdout == "fine\n", done
    with open(os.path.join(ROOT, "clients/node/package-lock.json")) as f:
        assert "resolved" not in f.read()  # it names no registry


def run_with(server, code):
    """What a program prints that gets the server's URL and process id."""
    node_packages()
    with tempfile.NamedTemporaryFile("w", suffix=".mjs", dir=NODE) as program:
        program.write(code)
        program.flush()
        done = subprocess.run([*RUN_NODE, program.name, "idem://127.0.0.1:%d" % server.port, str(server.pid)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    return done.stdout


def test_calls_share_a_connection_and_none_holds_up_another():
    code = """
import assert from "node:assert/strict";
import {Client, OutcomeUnknown} from "idem-client";
const client = new Client(process.argv[2]);
const many = (name, n) => Promise.all(Array.from({length: n}, (_, i) => client.once(name + i, () => ({i, text: name.repeat(i)}))));
for (let again = 0; again < 2; again++)
    (await many("k", 200)).forEach((value, i) => assert.deepEqual(value, {i, text: "k".repeat(i)}));

// A call that waits for another one's end does not keep that one, or a third, from ending.
let end;
const first = client.once("slow", () => new Promise((resolve) => end = resolve));
while (!end) await new Promise(setImmediate);
const waiting = client.once("slow", () => "never", {wait: 60000});
await many("w", 20);
end("slept");
assert.deepEqual([await first, await waiting], ["slept", "slept"]);

// A call whose deadline is over while the server stands still: the others get their answers when it goes on.
process.kill(Number(process.argv[3]), "SIGSTOP");
const others = many("s", 20);
await assert.rejects(client.once("short", () => 1, {deadline: 200}), OutcomeUnknown);
process.kill(Number(process.argv[3]), "SIGCONT");
assert.equal((await others).length, 20);
assert.equal((await many("t", 20)).length, 20);
console.log("fine");
"""
    with folder() as where, Server(where, listen=True) as server, server.client() as ask:
        assert run_with(server, code) == "fine\n"
        info = ask("INFO")
        assert int(re.search(r"total_connections_received:(\d+)", info)[1]) <= 8, info


def test_a_server_that_takes_no_more_clients_has_got_no_callers_command():
    code = """
import {Client} from "idem-client";
const client = new Client(process.argv[2], {deadline: 50});
const told = await Promise.allSettled(Array.from({length: 20}, (_, i) => client.once("k" + i, () => 1)));
console.log(told.every(({reason}) => reason?.name === "Unavailable") ? "fine" : told);
"""
    with folder() as where, Server(where, "--max-clients", "1", listen=True) as server:
        tried = []

        def is_admitted():
            tried.append(server.client())
            with contextlib.suppress(EOFError, OSError):
                return tried[-1]("PING") == "PONG"
        assert wait_until(is_admitted)  # whoever looked whether the server listens is gone
        assert run_with(server, code) == "fine\n"


def test_a_caller_that_blocks_the_event_loop_notices_a_server_that_went_away():
    """The connection was closed while the loop could not see it."""
    code = """
import {Client, Unavailable} from "idem-client";
const client = new Client(process.argv[2], {deadline: 500});
await client.once("warm", () => 1);
process.kill(Number(process.argv[3]), "SIGKILL");
Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1500);
console.log(await client.once("k", () => 1).catch((error) => error.name));
"""
    with folder() as where:
        server = Server(where, listen=True)
        try:
            assert run_with(server, code) == "Unavailable\n"
        finally:
            server.stop()


def test_work_that_throws_anything_or_returns_what_has_not_run_has_an_outcome():
    code = """
import assert from "node:assert/strict";
import {Client, Failed} from "idem-client";
const client = new Client(process.argv[2]);
const odd = [Object.create(null), {toString() { throw new Error("no text"); }}, Symbol("s"), undefined, null, 7, {name: Symbol("n"), message: 5n},
    {get message() { throw new Error("no message"); }}];
for (const [i, thrown] of odd.entries()) {
    await assert.rejects(client.once("odd" + i, () => { throw thrown; }), (got) => got === thrown);
    await assert.rejects(client.once("odd" + i, () => 1), Failed);
}
for (const [i, work] of [function* () { yield 1; }, async function* () { yield 1; }].entries()) {
    await assert.rejects(client.once("lazy" + i, work), /has not run/);
    await assert.rejects(client.once("lazy" + i, () => 1), Failed);
}
await assert.rejects(client.once("function", () => () => 1), /cannot be written/);
const own = {dump: (value) => new TextEncoder().encode(value), load: (bytes) => bytes.toString()};
for (let i = 0; i < 2; i++) assert.equal(await client.once("bytes", () => "书", own), "书");
console.log("fine");
"""
    with folder() as where, Server(where, listen=True) as server:
        assert run_with(server, code) == "fine\n"


def test_arguments_that_json_cannot_tell_apart_are_refused():
    """Two Maps are both {} as JSON: another one must not be taken for the same request."""
    code = """
import {fingerprint} from "idem-client";
class Cart { #items = 1; }
for (const odd of [new Map([[1, 2]]), new Set([1]), new Cart(), Promise.resolve(1), () => 1, Symbol("s"), [new Map()], /x/]) {
    try { fingerprint(odd); console.log("taken", odd); } catch (error) { if (!(error instanceof TypeError)) throw error; }
}
for (const fine of [{}, [], null, undefined, Object.create(null), new Date(0), {a: undefined}, [undefined], 1n, Buffer.from("x"), new Uint8Array(0)]) fingerprint(fine);
console.log("fine");
"""
    node_packages()
    done = subprocess.run(["node", "--input-type=module", "-e", code], cwd=NODE, capture_output=True, text=True, timeout=60)
    assert done.stdout == "fine\n", done


def test_an_answer_that_breaks_in_the_middle_is_an_unknown_outcome():
    """A stream that fails destroys its response. Its claim must not be renewed for as long as the process lives."""
    code = """
import http from "node:http";
import {pipeline, Readable} from "node:stream";
import {Client, idempotency} from "idem-client";
const guard = idempotency(new Client(process.argv[2]), {lease: 500});
const body = function* () { yield "begun"; throw new Error("the file cannot be read"); };
const service = http.createServer((req, res) => guard(req, res, () => pipeline(Readable.from(body()), res, () => {})));
await new Promise((go) => service.listen(0, "127.0.0.1", go));
const ask = () => fetch(`http://127.0.0.1:${service.address().port}/`, {method: "POST", body: "x", headers: {"Idempotency-Key": "k"}})
    .then((answer) => answer.json()).then(({type}) => type.replace(/.*[/]/, ""), () => "no answer");
const told = [await ask()];
for (let end = Date.now() + 30000; told.at(-1) !== "outcome-unknown" && Date.now() < end;) told.push(await ask());
console.log(told[0], told.at(-1));
process.exit(0);
"""
    with folder() as where, Server(where, listen=True) as server:
        assert run_with(server, code) == "no answer outcome-unknown\n"


def test_a_missing_key_is_not_a_key_that_everybody_shares():
    """Nor does a key that UTF-8 cannot hold become another one."""
    code = """
import {Client} from "idem-client";
const client = new Client("idem://127.0.0.1:1", {deadline: 1});
for (const key of [undefined, null, {}, NaN, "a\\ud800"]) console.log(await client.once(key, () => 1).catch((error) => error.name));
"""
    with tempfile.NamedTemporaryFile("w", suffix=".mjs", dir=NODE) as program:
        node_packages()
        program.write(code)
        program.flush()
        done = subprocess.run([*RUN_NODE, program.name], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["TypeError"] * 5, done


def test_mistakes_that_would_remove_the_protection_are_refused():
    """Before anything is sent: the work has run already, or its result would be kept for no time, or for everybody."""
    code = """
import assert from "node:assert/strict";
import {Client, fastifyIdempotency, idempotency, sqlOnce, sqlOnceTx} from "idem-client";
const client = new Client(process.argv[2]);
const place = async () => ({order: 7});
for (const wrong of [place(), await place(), undefined, null, 7, "text"])
    for (const call of [() => client.once("k", wrong), () => sqlOnce({}, "k", wrong, {arguments: 1}), () => sqlOnceTx({}, "k", wrong, {arguments: 1})])
        await assert.rejects(call, /work must be a function, .*: write once\\(key, \\(\\) => place\\(\\)\\), not once\\(key, place\\(\\)\\)/);
const times = {ttl: ["24h", 0, 0.5, -1, NaN, null, true, Infinity, {}], lease: ["30000", 0, -1, NaN], wait: ["5s", "5000", -1, NaN, Infinity], deadline: ["5s", -1, NaN]};
for (const [name, values] of Object.entries(times))
    for (const wrong of values) {
        const said = new RegExp(`^TypeError: ${name} is a number of milliseconds, [01] or more, not `);
        await assert.rejects(client.once("k", () => "ran", {[name]: wrong}), said);
        await assert.rejects(sqlOnce({}, "k", () => "ran", {[name]: wrong, arguments: 1}), said);
        assert.throws(() => new Client(process.argv[2], {[name]: wrong}), said);
        assert.throws(() => idempotency(client, {[name]: wrong}), said);
        if (name === "ttl") await assert.rejects(client.issue("ann", wrong), said);
    }
await assert.rejects(client.once("k", () => "ran", {ttl: "24h"}), /not "24h"/);
for (const wrong of [{}, null, () => "ann", "a\\ud800"]) await assert.rejects(client.once("k", () => "ran", {scope: wrong}), /scope is text/);
const made = idempotency(client, {scope: () => ({name: "ann"})}), req = {method: "POST", rawHeaders: ["Idempotency-Key", "k"], headers: {"content-type": "multipart/x"}, url: "/"};
assert.match(String(await new Promise((next) => made(req, {}, next))), /^TypeError: scope is text, not an object/);
await assert.rejects(client.once("k", () => "ran", {argument: {cart: 1}}), /there is no option argument/);
assert.throws(() => idempotency(client, {requried: true}), /there is no option requried/);
assert.throws(() => fastifyIdempotency(client, {methods: ["post"]}), /in capitals: POST, not post/);
assert.equal(await client.once("k", () => "first", {ttl: 86400000.4, scope: 7, lease: undefined, deadline: Infinity}), "first");
console.log("fine");
"""
    with folder() as where, Server(where, listen=True) as server:
        assert run_with(server, code) == "fine\n"


def test_the_errors_say_what_to_do():
    code = """
import assert from "node:assert/strict";
import {Client, Done, OutcomeUnknown, ResultNotKept} from "idem-client";
const client = new Client(process.argv[2], {scope: "pay"});
await assert.rejects(client.once("odd", () => () => 1), Done);
await assert.rejects(client.once("odd", () => 1), (error) => error instanceof ResultNotKept
    && error.message === "pay/odd was done; its result was not kept: it was too large, or could not be written");
await assert.rejects(client.once("it's", () => { throw new OutcomeUnknown("left"); }, {lease: 1}), /left/);
await new Promise((go) => setTimeout(go, 50));
await assert.rejects(client.once("it's", () => 1), (error) => error instanceof OutcomeUnknown
    && error.message === "nobody knows whether pay/it's was executed: find out, then settle it (idem doubts lists it; idem settle pay 'it'\\\\''s' --as …)");
console.log("fine");
"""
    with folder() as where, Server(where, listen=True) as server:
        assert run_with(server, code) == "fine\n"


def test_body_parsers_find_what_the_middleware_has_read():
    node_packages()
    with folder() as where, Server(where, listen=True) as server:
        done = subprocess.run([*RUN_NODE, os.path.join(NODE, "tests/forms.js"), "idem://127.0.0.1:%d" % server.port], capture_output=True, text=True, timeout=120)
        assert done.stdout == "fine\n", done.stdout + done.stderr
