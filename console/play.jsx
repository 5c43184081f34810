// The playground: every scheme first broken, then protected, on a sandbox that the server makes for each run.
import { useEffect, useState } from "preact/hooks";
import { call } from "./api.js";
import { Diagram, said, time } from "./diagram.jsx";
import { attempt, Table } from "./parts.jsx";
import { SAMPLES } from "./samples.js";
import { SCHEMES, pick } from "./schemes.js";
import { t } from "./words.js";

function Samples({ scheme }) {
    const [at, setAt] = useState(0), all = SAMPLES[scheme], [, from, text] = all[at] || all[0];
    return <section><h3>{t("play-samples")}</h3>
        <div class="bar" role="group" aria-label={t("play-samples")}>{all.map(([label], i) =>
            <button key={label + i} type="button" class="quiet" aria-pressed={i === at} onClick={() => setAt(i)}>{label}</button>)}</div>
        <pre tabIndex={0} class="sample">{text}</pre><p class="note">{from}</p></section>;
}

function Outcome({ told, scheme }) {
    const others = Object.entries(told.replies).map(([word, n]) => `${t(`play-${word}`)} × ${n}`).join(" · ");
    const sent = Object.values(told.replies).reduce((sum, n) => sum + n, 0);
    return <div class={"outcome" + (told.wrong ? " alarm" : "")} role="status" data-run={told.run} data-effects={told.effects} data-wrong={String(told.wrong)}>
        <p><b>{pick(told.wrong ? scheme.harm : scheme.fine)}</b></p>
        <p>{t("play-effects", { n: told.effects, m: told.wanted })}</p><p class="note">{t("play-replies")}{others}</p>
        {sent > 3 && <p class="note">{t("play-drawn", { n: sent })}</p>}</div>;
}

function Data({ told }) {
    return <>{told.tables.map((table) => <div key={table.name}><h3>{t("play-table", { name: table.name })}</h3>
        {table.rows.length ? <Table label={table.name} heads={table.columns}>{table.rows.map((row, i) => <tr key={i}>{row.map((v, j) => <td key={j}>{v}</td>)}</tr>)}</Table>
            : <p class="note">{t("nothing")}</p>}</div>)}
        <h3>{t("play-record")}</h3>
        {told.records.length ? told.records.map((r) => <pre key={r.id} tabIndex={0}>{`${r.type} ${r.scope} ${r.id}\n${r.state}\nfence ${r.fence}`}</pre>)
            : <p class="note">{t("play-noRecord")}</p>}</>;
}

function AsText({ told, name }) {
    return <details><summary>{t("play-asText")}</summary>
        <Table label={t("play-asText")} heads={[t("time"), t("from"), t("play-to"), t("what")]}>{told.messages.map((m, i) =>
            <tr key={i}><td>{time(m.at_us)}</td><td>{name(m.from)}</td><td>{m.from === m.to ? "" : name(m.to)}</td><td>{said(m)}</td></tr>)}</Table></details>;
}

function Scheme({ scheme, actions }) {
    const [safe, setSafe] = useState(false), [told, setTold] = useState(null), [working, setWorking] = useState(false);
    const name = (actor) => (scheme.actors?.[actor] ? pick(scheme.actors[actor]) : t(actor === "table" ? "play-table-actor" : `play-${actor}`));
    const run = async (action, protect = safe) => {
        setWorking(true);
        const got = await attempt(() => call("POST", `/v1/play/${scheme.name}/${action}`, { protected: protect }));
        if (got) setTold({ ...got, run: (told?.run || 0) + 1 });
        setWorking(false);
    };
    const turn = (to) => { setSafe(to); if (told) run(told.action, to); };
    const half = safe ? scheme.safe : scheme.broken;
    return <><h2>{pick(scheme.title)}</h2><p>{pick(scheme.what)}</p>
        <blockquote lang="zh-CN">{scheme.quote}</blockquote>
        <fieldset class="bar"><legend>{t("play-switch")}</legend>{[[false, scheme.words?.[0] || t("play-broken")], [true, scheme.words?.[1] || t("play-safe")]].map(([value, text]) =>
            <label key={text}><input type="radio" name="half" value={String(value)} checked={safe === value} onChange={() => turn(value)} /> {Array.isArray(text) ? pick(text) : text}</label>)}</fieldset>
        <p class="half">{pick(half)}</p>
        <div class="play"><section aria-label={t("play-client")}><h3>{t("play-client")}</h3><div class="buttons">{actions.map((a) =>
            <button key={a} type="button" data-action={a} disabled={working} onClick={() => run(a)}>{t(`play-do-${a}`)}</button>)}</div>
            <p class="note">{t("play-race")}</p></section>
        <section>{told ? <Diagram told={told} name={name} /> : <p class="note">{t("play-press")}</p>}</section>
        <section aria-label={t("play-data")}>{told && <><Outcome told={told} scheme={scheme} /><Data told={told} /></>}</section></div>
        {told && <AsText told={told} name={name} />}<Samples scheme={scheme.name} /></>;
}

export function Play({ path }) {
    const [list, setList] = useState(null);
    useEffect(() => { attempt(async () => setList((await call("GET", "/v1/play")).schemes)); }, []);
    if (!list) return <p>{t("loading")}</p>;
    const there = SCHEMES.filter((s) => list.some((l) => l.name === s.name));
    const scheme = there.find((s) => s.name === path);
    return <><p class="note">{t("play-about")}</p>
        <ul class="schemes">{there.map((s) => <li key={s.name}><a href={"#/play/" + s.name} aria-current={s === scheme ? "page" : undefined}>{pick(s.title)}</a></li>)}</ul>
        {scheme ? <Scheme key={scheme.name} scheme={scheme} actions={list.find((l) => l.name === scheme.name).actions} /> : <p>{t("play-choose")}</p>}</>;
}
