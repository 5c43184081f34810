// What happens now, and did in the last hour.
import { useReducer, useState } from "preact/hooks";
import { column, latest, stats } from "./api.js";
import { Chart } from "./chart.jsx";
import { amount, Choice, span } from "./parts.jsx";
import { use, useEvery } from "./state.js";
import { t } from "./words.js";

const VERDICTS = [["firstPerSecond", "first"], ["replayed", "replayed"], ["busy", "busy"], ["mismatch", "mismatch"], ["refused", "refused"], ["doubt", "doubt"]];
const MIB = 1048576;

function Tile({ label, children, alarm }) {
    return <div class={alarm ? "tile alarm" : "tile"}><dt>{label}</dt><dd>{children}</dd></div>;
}

function Tiles() {
    const silent = Math.floor((Date.now() - stats.value.at) / 1000), doubts = latest("doubts"), answers = latest("store_answers");
    return <>
        {stats.value.at > 0 && silent > 5 && <p class="alarm" role="alert">{t("silent", { n: silent })}</p>}
        <dl class="tiles">
            {VERDICTS.slice(0, 2).map(([word, name]) => <Tile key={name} label={t(word)}>{amount(latest(name))}/s</Tile>)}
            <Tile label={t("errors")} alarm={latest("errors") > 0}>{amount(latest("errors"), 1)}/s</Tile>
            <Tile label={t("doubts")} alarm={doubts > 0}><a href="#/doubts">{amount(doubts)}</a></Tile>
            <Tile label={t("oldest")} alarm={doubts > 0}>{doubts > 0 ? span(latest("oldest_doubt_s") * 1000) : "–"}</Tile>
            <Tile label={t("store")} alarm={answers === 0}>{answers === 0 ? t("storeSilent") : t("storeAnswers")}</Tile>
            <Tile label={t("clock")} alarm={latest("clock_alarm") > 0}>{latest("clock_alarm") > 0 ? t("clockJumped") : t("clockFine")}</Tile>
            <Tile label={t("recordCount")}>{amount(latest("records"))}</Tile>
            <Tile label={t("clients")}>{amount(latest("clients"))}</Tile>
        </dl></>;
}

export function Overview({ theme }) {
    use(stats);
    const [, again] = useReducer((n) => n + 1, 0);
    useEvery(2000, again); // a server that falls silent sends nothing to draw
    const [seconds, setSeconds] = useState(60), [paused, setPaused] = useState(null), [verb, setVerb] = useState("begin");
    const all = paused || stats.value.rows, rows = all.slice(-seconds);
    const times = rows.map((r) => r[0] / 1000);
    const values = (name, change = (v) => v) => rows.map((r) => (r[column(name)] === null ? null : change(r[column(name)])));
    const line = (word, name, color, change) => ({ label: t(word), color, values: values(name, change) });
    const verbs = stats.value.names.filter((n) => n.startsWith("p50_")).map((n) => n.slice(4));
    const chart = { times, theme };
    if (rows.length === 0) return <p>{t("loading")}</p>;
    return <><Tiles />
        <div class="bar">
            <Choice label={t("range")} value={seconds} onChange={(e) => setSeconds(Number(e.target.value))}
                options={[[60, t("minute")], [900, t("quarter")], [3600, t("hour")]]} />
            <Choice label={t("verb")} value={verb} onChange={(e) => setVerb(e.target.value)} options={verbs.map((v) => [v, v])} />
            <button type="button" aria-pressed={paused !== null} onClick={() => setPaused(paused ? null : stats.value.rows)}>
                {paused ? t("goOn") : t("pause")}</button>
            <p class="note">{t("zoomHelp")}</p>
        </div>
        <div class="charts">
            <Chart {...chart} stacked title={t("verdicts")} lines={VERDICTS.map(([word, name]) => line(word, name, "--c-" + name))} />
            <Chart {...chart} digits={2} title={`${t("latency")}: ${verb}`} lines={[
                { label: "p50", color: "--c-first", values: values("p50_" + verb) }, { label: "p99", color: "--c-doubt", values: values("p99_" + verb) }]} />
            <Chart {...chart} digits={1} title={t("batches")} lines={[line("commits", "commits", "--c-first"),
                { label: t("batchSize"), color: "--c-busy", values: rows.map((r) => (r[column("commits")] ? r[column("writes")] / r[column("commits")] : null)) }]} />
            <Chart {...chart} title={t("waiting")} lines={[line("parked", "parked", "--c-replayed"), line("queued", "queued", "--c-refused")]} />
            {latest("used_bytes") !== null && <Chart {...chart} digits={1} title={t("space")} lines={[
                line("live", "live_bytes", "--c-first", (v) => v / MIB), line("used", "used_bytes", "--c-busy", (v) => v / MIB)]} />}
        </div></>;
}
