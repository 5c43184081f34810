// Locks, tokens and ids; routes of a gateway and consumers; the audit trail.
import { useState } from "preact/hooks";
import { call, may, message, query, recordPath, serverNow } from "./api.js";
import { amount, attempt, Choice, Drawer, Facts, Field, Operate, span, Table, when } from "./parts.jsx";
import { nameOf } from "./record.jsx";
import { useEvery } from "./state.js";
import { t } from "./words.js";

const TOKEN_PARTS = 5; // of 1,000 records each, every few seconds

function Locks() {
    const [locks, setLocks] = useState(null), [queue, setQueue] = useState(null), [open, setOpen] = useState(null);
    const load = () => attempt(async () => {
        setQueue(await call("GET", "/v1/waiters?count=1000"));
        setLocks((await call("GET", "/v1/records?type=lock&state=executing&count=1000")).records);
    });
    useEvery(2000, load);
    const free = async (reason, secret) => {
        await call("DELETE", query(recordPath(open), { fence: open.fence, reason }), undefined, secret);
        message.value = t("freed", { key: open.id });
        setOpen(null);
        load();
    };
    const waiting = (l) => queue.waiters.filter((w) => nameOf(w, "id") === nameOf(l, "id") && nameOf(w, "scope") === nameOf(l, "scope"));
    return <section><h2>{t("locksTitle")}</h2>{!locks ? t("loading") : locks.length === 0 ? <p class="empty">{t("nothing")}</p> :
        <Table label={t("locksTitle")} heads={[t("key"), t("holder"), t("leaseLeft"), t("fence"), t("waitingFor"), t("details")]}>{locks.map((l) =>
            <tr key={l.id}><td>{nameOf(l, "id")}</td><td>{l.subject}</td><td>{l.lease_until > serverNow() ? span(l.lease_until - serverNow()) : t("over")}</td>
                <td>{String(l.fence)}</td><td><Queue waiters={waiting(l)} /></td><td>{may("operate") && l.id !== undefined && <button type="button" onClick={() => setOpen(l)}>{t("free")}</button>}</td></tr>)}</Table>}
        {open && <Drawer title={open.id} onClose={() => setOpen(null)}><Operate label={t("free")} help={t("freeHelp")} act={free} /></Drawer>}</section>;
}

// Who waits for one lock, first come first, at the server that answers this page.
function Queue({ waiters }) {
    if (waiters.length === 0) return "–";
    return <details class="queue"><summary>{amount(waiters.length)}</summary><ol>{waiters.map((w, i) =>
        <li key={i}>{t("waits", { who: nameOf(w, "owner"), since: span(serverNow() - w.since), left: span(w.until - serverNow()) })}</li>)}</ol></details>;
}

// How long what is at hand lasts if ids go on being asked for as in the last seconds.
function Segments() {
    const [now, setNow] = useState(null);
    useEvery(3000, () => attempt(async () => {
        const said = { ...await call("GET", "/v1/segments"), at: Date.now() };
        setNow((then) => ({ ...said, rates: Object.fromEntries(said.segments.map((s) => {
            const old = then?.segments.find((o) => nameOf(o, "name") === nameOf(s, "name"));
            return [nameOf(s, "name"), old ? (s.given - old.given) * 1000 / (said.at - then.at) : 0];
        })) }));
    }));
    if (!now || now.segments.length === 0) return null;
    return <><h3>{t("segments")}</h3><Table label={t("segments")} heads={[t("name"), t("given"), t("rates"), t("rangeUsed"), t("atHand"), t("lasts")]}>{now.segments.map((s) => {
        const rate = now.rates[nameOf(s, "name")], used = Math.max(0, 1 - s.left / s.step);
        return <tr key={nameOf(s, "name")}><td>{nameOf(s, "name")}</td><td>{amount(s.given)}</td><td>{amount(rate, 1)}</td>
            <td><meter aria-label={`${t("rangeUsed")} ${nameOf(s, "name")}`} value={used} /> {amount(100 * used)} % / {amount(s.step)}</td>
            <td>{amount(s.left + s.spare)}</td><td>{rate > 0 ? span((s.left + s.spare) * 1000 / rate) : "–"}</td></tr>;
    })}</Table></>;
}

function Tokens() {
    const [counts, setCounts] = useState({});
    useEvery(10000, () => attempt(async () => {
        const found = {};
        let cursor = "0";
        for (let i = 0; i < TOKEN_PARTS; i++) {
            const said = await call("GET", query("/v1/records", { type: "token", count: 1000, cursor }));
            said.records.forEach((r) => { found[r.state] = (found[r.state] || 0) + 1; });
            cursor = said.cursor;
            if (cursor === "0") break;
        }
        setCounts({ found, more: cursor !== "0" });
    }));
    return <section><h2>{t("tokensTitle")}</h2><Facts facts={["issued", "executing", "succeeded", "failed"].map((state) =>
        [state === "issued" ? t("issued") : state, counts.found && amount(counts.found[state] || 0) + (counts.more ? "+" : "")])} /></section>;
}

function Explain() {
    const [id, setId] = useState(""), [kind, setKind] = useState("snowflake"), [said, setSaid] = useState(null);
    const ask = (e) => { e.preventDefault(); attempt(async () => setSaid(await call("GET", `/v1/ids/${kind}/${encodeURIComponent(id)}`))); };
    const known = (n) => (n >= 0 ? String(n) : undefined);
    return <form class="bar" onSubmit={ask}><Choice label={t("kind")} value={kind} onChange={(e) => setKind(e.target.value)}
        options={["snowflake", "uid", "uuid4", "uuid7"].map((k) => [k, k])} />
        <Field label={t("explain")} value={id} required onInput={(e) => setId(e.target.value)} /><button>{t("explain")}</button>
        {said && <Facts facts={[[t("madeAt"), said.time >= 0 ? when(said.time) : undefined], [t("worker"), known(said.worker)],
            [t("sequence"), known(said.sequence)], [t("version"), known(said.version)]]} />}</form>;
}

export function LocksAndIds() {
    const [workers, setWorkers] = useState([]), [ids, setIds] = useState(null);
    useEvery(5000, () => attempt(async () => setIds((await call("GET", "/v1/stats?seconds=1")).facts.ids)));
    useEvery(10000, () => may("list") && attempt(async () => setWorkers((await call("GET", "/v1/records?type=worker&count=1000")).records)));
    return <>{may("list") ? <><Locks /><Tokens /></> : <p>{t("noRight")}</p>}
        <section><h2>{t("idsTitle")}</h2>
            {ids && <Table label={t("idsTitle")} heads={[t("kind"), t("given"), t("reserved"), t("worker"), t("ahead")]}>{ids.kinds.map((k) =>
                <tr key={k.kind}><td>{k.kind}</td><td>{amount(k.given)}</td><td>{amount(k.reserved)}</td><td>{k.worker >= 0 ? k.worker : "–"}</td><td>{k.ahead_ms}</td></tr>)}</Table>}
            {may("list") && <Segments />}
            <Explain />
            {workers.length > 0 && <><h3>{t("workers")}</h3><Table label={t("workers")} heads={[t("scope"), t("key"), t("holder"), t("leaseLeft")]}>{workers.map((w) =>
                <tr key={nameOf(w, "scope") + nameOf(w, "id")}><td>{nameOf(w, "scope")}</td><td>{nameOf(w, "id")}</td><td>{w.subject}</td>
                    <td>{w.state === "executing" ? span(w.lease_until - serverNow()) : w.state}</td></tr>)}</Table></>}</section></>;
}

// ---- routes ---------------------------------------------------------------------

const sum = (verdicts) => Object.values(verdicts).reduce((a, b) => a + b, 0);

const SILENT_S = 10; // a consumer writes once a second

function Consumers() {
    const [said, setSaid] = useState(null);
    useEvery(3000, () => attempt(async () => setSaid(await call("GET", "/v1/consumers"))));
    if (!said) return null;
    const number = (c, name, bad) => <td class={bad && c[name] > 0 ? "bad" : ""}>{amount(c[name])}</td>;
    return <section><h2>{t("consumers")}</h2><p class="note">{t("consumersHelp")}</p>
        {said.consumers.length === 0 ? <p class="empty">{t(said.watched ? "nothing" : "noConsumers")}</p> :
            <Table label={t("consumers")} heads={[t("scope"), t("lag"), t("inFlight"), t("handled"), t("duplicates"), t("retries"), t("deadLetters"), t("doubts"), t("reconnects"), t("report")]}>
                {said.consumers.toSorted((a, b) => String(a.scope).localeCompare(b.scope)).map((c) => <tr key={c.file}><td>{c.scope}</td>{number(c, "lag_messages")}{number(c, "in_flight")}{number(c, "handled")}{number(c, "duplicate")}
                    {number(c, "retry")}{number(c, "dead_letter", true)}<td class={c.doubt > 0 ? "bad" : ""}>{c.doubt > 0 ? <a href="#/doubts">{amount(c.doubt)}</a> : amount(c.doubt)}</td>
                    {number(c, "reconnects_total")}<td class={c.silent_s > SILENT_S ? "bad" : ""}>{t("ago", { n: span(c.silent_s * 1000) })}</td></tr>)}</Table>}</section>;
}

export function RoutesAndConsumers() {
    if (!may("list")) return <p>{t("noRight")}</p>;
    return <><Routes /><Consumers /></>;
}

function Routes() {
    const [now, setNow] = useState(null), [rates, setRates] = useState({});
    useEvery(3000, () => attempt(async () => {
        const said = { ...await call("GET", "/v1/routes"), at: Date.now() };
        setNow((then) => {
            if (then) setRates(Object.fromEntries(said.figures.map((f) => {
                const old = then.figures.find((o) => o.route === f.route);
                return [f.route, old ? (sum(f.verdicts) - sum(old.verdicts)) * 1000 / (said.at - then.at) : 0];
            })));
            return said;
        });
    }));
    if (!now) return <p>{t("loading")}</p>;
    if (now.routes.length === 0) return <p class="empty">{t("noGateway")}</p>;
    return now.routes.map((r) => {
        const counted = now.figures.find((f) => f.route === r.route);
        return <section key={r.host + r.route} class="route"><h2>{r.host}{r.route} <small>→ {r.upstream}</small></h2>
            <p><b>{t("rates")}</b> {amount(rates[r.route] || 0, 1)} · {counted && Object.entries(counted.verdicts).filter(([, n]) => n > 0).map(([v, n]) => `${v} ${amount(n)}`).join(" · ")}</p>
            {r.warnings.length > 0 && <><h3>{t("warnings")}</h3><ul class="warnings">{r.warnings.map((w) => <li key={w}>{t(w)}</li>)}</ul></>}
            <details><summary>{t("policy")}</summary><Facts facts={Object.entries(r.options)} /></details></section>;
    });
}

// ---- audit ----------------------------------------------------------------------

const COLUMNS = ["time", "who", "proposed_by", "from", "surface", "verb", "outcome", "verdict", "before", "after", "scope", "id", "reason"];

// A spreadsheet takes a cell that begins like this for a formula.
const cell = (value) => `"${String(value ?? "").replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;

function save(name, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text]));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function Audit() {
    const [entries, setEntries] = useState(null), [scope, setScope] = useState(""), [id, setId] = useState("");
    const load = () => attempt(async () => setEntries((await call("GET", query("/v1/audit", { scope, id, count: 1000 }))).entries.toReversed()));
    useEvery(5000, load, [scope, id]);
    if (!may("list")) return <p>{t("noRight")}</p>;
    return <><p class="note">{t("auditHelp")}</p>
        <div class="bar"><Field label={t("scope")} type="search" value={scope} onInput={(e) => setScope(e.target.value)} />
            <Field label={t("key")} type="search" value={id} onInput={(e) => setId(e.target.value)} />
            {entries && <><button type="button" onClick={() => save("idem-audit.jsonl", entries.map((e) => JSON.stringify(e) + "\n").join(""))}>{t("exportJson")}</button>
                <button type="button" onClick={() => save("idem-audit.csv", [COLUMNS, ...entries.map((e) => COLUMNS.map((c) => e[c]))].map((row) =>
                    row.map(cell).join(",") + "\r\n").join(""))}>{t("exportCsv")}</button></>}</div>
        {!entries ? <p>{t("loading")}</p> : entries.length === 0 ? <p class="empty">{t("nothing")}</p> :
            <Table label={t("audit")} heads={[t("time"), t("who"), t("from"), t("what"), t("scope"), t("key"), t("change"), t("reason")]}>{entries.map((e, i) =>
                <tr key={e.time + i}><td>{when(Date.parse(e.time))}</td><td>{e.who}{e.proposed_by && ` (${t("proposedBy", { who: e.proposed_by })})`}</td><td>{e.from}</td><td>{e.verb}</td><td>{nameOf(e, "scope")}</td>
                    <td>{nameOf(e, "id")}</td><td>{e.before} → {e.after}</td><td>{e.reason}</td></tr>)}</Table>}</>;
}
