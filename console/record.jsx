// One record: all that is known, its life, its answer, and what an operator may do with it.
import { useState } from "preact/hooks";
import { call, composeResult, may, message, query, readResult, recordPath, serverNow, session, shellQuote } from "./api.js";
import { amount, attempt, Choice, Drawer, Facts, Field, Operate, span, when } from "./parts.jsx";
import { useEvery } from "./state.js";
import { t } from "./words.js";

export const isDoubt = (r) => r.state === "executing" && r.type === "request" && r.mode === "strict" && r.lease_until < serverNow();
export const nameOf = (r, field) => r[field] ?? `base64:${r[field + "_base64"]}`;

// A gateway's label: "POST /orders 00-0af7…", the method and path of the request and its trace.
const LABEL = /^([A-Z]+ \/\S*)(?: (\S+))?$/;

function Life({ record: r }) {
    const [acts, setActs] = useState([]);
    useEvery(10000, () => may("list") && r.scope !== undefined && r.id !== undefined && attempt(async () =>
        setActs((await call("GET", query("/v1/audit", { scope: r.scope, id: r.id, count: 50 }))).entries)), [r.scope, r.id]);
    const steps = [...acts.map((e) => [Date.parse(e.time), `${e.verb} – ${e.who}${e.reason ? ": " + e.reason : ""}`]),
        [r.created, t("created")], [r.updated, `${t("updated")}: ${r.state}${r.settled ? ", " + t("settledBy") : ""}`],
        [r.state === "executing" ? r.lease_until : 0, t("leaseUntil")], [isDoubt(r) ? r.lease_until : 0, t("doubt")],
        [r.state === "executing" ? 0 : r.expires, t("expires")]];
    return <section><h3>{t("life")}</h3><ol class="life">{steps.filter(([at]) => at > 0).sort((a, b) => a[0] - b[0]).map(([at, text], i) =>
        <li key={i} class={at > serverNow() ? "later" : ""}><time>{when(at)}</time> {text}</li>)}</ol></section>;
}

export function Result({ kind, result }) {
    const { head, headers, body, bytes } = readResult(kind, result);
    return <div class="answer">{head && <p><b>{kind === "http" ? "HTTP " : ""}{head}</b></p>}
        {headers.length > 0 && <pre>{headers.join("\n")}</pre>}
        <pre class="body" tabIndex={0}>{body === null ? t("binary", { n: bytes }) : body}</pre></div>;
}

function Answer({ record, masked }) {
    const [shown, setShown] = useState(null);
    const reveal = () => attempt(async () => setShown((await call("POST", recordPath(record, "reveal"), {})).record));
    if (!["succeeded", "failed"].includes(record.state) || record.type !== "request") return null;
    return <section><h3>{t("answer")} <small>{record.kind}</small></h3>
        {shown ? shown.result_base64 === undefined ? <p>{t("notKept")}</p> : <Result kind={shown.kind} result={shown.result_base64} />
            : masked > 0 ? <><p class="note">{t("masked", { n: amount(masked) })}</p>
                <button type="button" class="reveal" onClick={reveal}>{t("reveal")}</button></>
                : <p class="note">{record.replayable ? t("masked", { n: 0 }) : t("notKept")}</p>}</section>;
}

function Retry({ record }) {
    if (record.id === undefined || record.scope === undefined) return null;
    const look = `curl -u NAME ${shellQuote(location.origin + recordPath(record))}`;
    const again = `curl -X POST https://GATEWAY/PATH -H ${shellQuote(`Idempotency-Key: "${record.id.replaceAll(/[\\"]/g, "\\$&")}"`)} -d @SAME-BODY`;
    return <section><h3>{t("retry")}</h3><p class="note">{t("retryHelp")}</p><pre class="curl" tabIndex={0}>{look}{"\n"}{record.type === "request" && again}</pre></section>;
}

function Composer({ record, onDone }) {
    const [answer, setAnswer] = useState({ outcome: "succeeded", as: "http", status: "200", headers: "Content-Type: application/json", body: "" });
    const field = (name) => ({ name, value: answer[name], onInput: (e) => setAnswer({ ...answer, [name]: e.target.value }) });
    const settle = async (reason, secret) => {
        const said = await call("POST", recordPath(record, "settle"), { outcome: answer.outcome, reason, fence: record.fence, ...composeResult(answer) }, secret);
        if (said.verdict !== "settled") throw new Error(said.verdict === "stale" ? t("changedSince") : said.verdict);
        message.value = t("settled", { scope: nameOf(record, "scope"), key: nameOf(record, "id") });
        onDone();
    };
    return <section><h3>{t("settle")}</h3><Operate label={t("settle")} act={settle}>
        <Choice label={t("outcome")} options={[["succeeded", t("succeeded")], ["failed", t("failedOutcome")]]} {...field("outcome")} />
        <Choice label={t("answerAs")} options={[["http", t("asHttp")], ["raw", t("asRaw")]]} {...field("as")} />
        {answer.as === "http" && <><Field label={t("status")} inputMode="numeric" {...field("status")} />
            <Field label={t("headers")} as="textarea" rows={2} {...field("headers")} /></>}
        <Field label={t("body")} as="textarea" rows={4} {...field("body")} /></Operate></section>;
}

function Checklist() {
    return <section><h3>{t("whereToLook")}</h3><ul class="checks">{["check1", "check2", "check3", "check4"].map((word) =>
        <li key={word}><label><input type="checkbox" /> {t(word)}</label></li>)}</ul></section>;
}

function Forget({ record, onDone }) {
    const forget = async (reason, secret) => {
        const said = await call("POST", recordPath(record, "forget"), { reason, fence: record.fence }, secret);
        if (said.verdict === "stale") throw new Error(t("changedSince"));
        message.value = t("forgotten", { scope: nameOf(record, "scope"), key: nameOf(record, "id") });
        onDone();
    };
    return <details><summary>{t("forget")}</summary><Operate label={t("forget")} help={t("forgetHelp")} act={forget} /></details>;
}

// What another operator asked for, to be asked for once more.
function Proposal({ proposal: p, onDone }) {
    const again = async (reason, secret) => {
        const record = { ...p, type: p.verb === "unlock" ? "lock" : "request" };
        const ttl = p.ttl_ms ? { ttl_ms: p.ttl_ms } : {};
        const fence = p.fence, path = recordPath(record, p.verb === "unlock" ? "" : p.verb);
        const said = p.verb === "unlock" ? await call("DELETE", query(path, { fence, reason }), undefined, secret)
            : await call("POST", path, p.verb === "settle"
                ? { outcome: p.outcome, kind: p.kind, result_base64: p.result_base64, reason, fence, ...ttl } : { reason, fence }, secret);
        if (said.verdict === "stale") throw new Error(t("changedSince"));
        message.value = t("approved", { verb: p.verb, scope: p.scope, key: p.id });
        onDone();
    };
    return <li class="proposal"><p>{t("secondHelp", { who: p.who, verb: p.verb, scope: nameOf(p, "scope"), key: nameOf(p, "id"), reason: p.reason || "–" })} {p.outcome}{p.ttl_ms ? `, TTL ${span(p.ttl_ms)}` : ""}</p>
        {p.verb === "settle" && p.result_base64 !== undefined && <Result kind={p.kind} result={p.result_base64} />}
        {p.who === session.value.name ? <p class="note">{t("secondOwn")}</p>
            : <details><summary>{t("approve")}</summary><Operate label={t("approve")} act={again} /></details>}</li>;
}

export function Proposals({ onDone }) {
    const [all, setAll] = useState([]);
    const load = () => attempt(async () => setAll((await call("GET", "/v1/proposals")).proposals));
    useEvery(5000, load);
    return all.length > 0 && <section><h2>{t("secondTitle")}</h2><ul class="proposals">{all.map((p) =>
        <Proposal key={p.who + p.time} proposal={p} onDone={() => { load(); onDone(); }} />)}</ul></section>;
}

export function RecordDrawer({ record: r, onClose }) {
    const [masked, setMasked] = useState(undefined), [record, setRecord] = useState(r);
    if (masked === undefined && may("look")) {
        setMasked(null);
        attempt(async () => {
            const said = await call("GET", recordPath(r));
            if (said.record) { setRecord(said.record); setMasked(said.record.masked_bytes || 0); }
        });
    }
    const [, request, trace] = LABEL.exec(record.subject || "") || [];
    const reachable = record.scope !== undefined && record.id !== undefined && record.type === "request";
    return <Drawer title={nameOf(record, "id")} onClose={onClose}>
        <Facts facts={[[t("scope"), nameOf(record, "scope")], [t("key"), nameOf(record, "id")], [t("type"), record.type], [t("state"), record.state],
            [t("began"), record.subject], [t("request"), request], [t("trace"), trace], [t("attempt"), record.attempt], [t("mode"), record.mode], [t("fence"), String(record.fence)],
            [t("fingerprint"), record.fingerprint], [t("since"), isDoubt(record) ? span(serverNow() - record.lease_until) : undefined]]} />
        <Life record={record} />
        <Answer record={record} masked={masked} />
        {isDoubt(record) && <Checklist />}
        {isDoubt(record) && reachable && <Composer record={record} onDone={onClose} />}
        <Retry record={record} />
        {reachable && may("operate") && <Forget record={record} onDone={onClose} />}
    </Drawer>;
}
