// Locks, tokens and ids; routes of a gateway; the audit trail.
import { useState } from "preact/hooks";
import { call, may, message, query, recordPath, serverNow } from "./api.js";
import { amount, attempt, Choice, Drawer, Facts, Field, Operate, span, Table, when } from "./parts.jsx";
import { nameOf } from "./record.jsx";
import { useEvery } from "./state.js";
import { t } from "./words.js";

const TOKEN_PARTS = 5; // of 1,000 records each, every few seconds

function Locks() {
    const [locks, setLocks] = useState(null), [open, setOpen] = useState(null);
    const load = () => attempt(async () => setLocks((await call("GET", "/v1/records?type=lock&state=executing&count=1000")).records));
    useEvery(2000, load);
    const free = async (reason, secret) => {
        await call("DELETE", query(recordPath(open), { fence: open.fence, reason }), undefined, secret);
        message.value = t("freed", { key: open.id });
        setOpen(null);
        load();
    };
    return <section><h2>{t("locksTitle")}</h2>{!locks ? t("loading") : locks.length === 0 ? <p class="empty">{t("nothing")}</p> :
        <Table label={t("locksTitle")} heads={[t("key"), t("holder"), t("leaseLeft"), t("fence"), t("details")]}>{locks.map((l) =>
            <tr key={l.id}><td>{nameOf(l, "id")}</td><td>{l.subject}</td><td>{l.lease_until > serverNow() ? span(l.lease_until - serverNow()) : t("over")}</td>
                <td>{String(l.fence)}</td><td>{may("operate") && l.id !== undefined && <button type="button" onClick={() => setOpen(l)}>{t("free")}</button>}</td></tr>)}</Table>}
        {open && <Drawer title={open.id} onClose={() => setOpen(null)}><Operate label={t("free")} help={t("freeHelp")} act={free} /></Drawer>}</section>;
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
            <Explain />
            {workers.length > 0 && <><h3>{t("workers")}</h3><Table label={t("workers")} heads={[t("scope"), t("key"), t("holder"), t("leaseLeft")]}>{workers.map((w) =>
                <tr key={nameOf(w, "scope") + nameOf(w, "id")}><td>{nameOf(w, "scope")}</td><td>{nameOf(w, "id")}</td><td>{w.subject}</td>
                    <td>{w.state === "executing" ? span(w.lease_until - serverNow()) : w.state}</td></tr>)}</Table></>}</section></>;
}

// ---- routes ---------------------------------------------------------------------

const sum = (verdicts) => Object.values(verdicts).reduce((a, b) => a + b, 0);

export function Routes() {
    const [now, setNow] = useState(null), [rates, setRates] = useState({});
    useEvery(3000, () => may("list") && attempt(async () => {
        const said = { ...await call("GET", "/v1/routes"), at: Date.now() };
        setNow((then) => {
            if (then) setRates(Object.fromEntries(said.figures.map((f) => {
                const old = then.figures.find((o) => o.route === f.route);
                return [f.route, old ? (sum(f.verdicts) - sum(old.verdicts)) * 1000 / (said.at - then.at) : 0];
            })));
            return said;
        });
    }));
    if (!may("list")) return <p>{t("noRight")}</p>;
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

const COLUMNS = ["time", "who", "from", "surface", "verb", "outcome", "verdict", "before", "after", "scope", "id", "reason"];

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
                <tr key={e.time + i}><td>{when(Date.parse(e.time))}</td><td>{e.who}</td><td>{e.from}</td><td>{e.verb}</td><td>{nameOf(e, "scope")}</td>
                    <td>{nameOf(e, "id")}</td><td>{e.before} → {e.after}</td><td>{e.reason}</td></tr>)}</Table>}</>;
}
