// A sequence diagram of what really happened: a lane for each actor, a row for each message, one after the other.
import { useEffect, useState } from "preact/hooks";
import { t } from "./words.js";

const LEFT = 58, LANE = 146, ROW = 34, HEAD = 34, STEP_MS = 220;
const length = (text) => [...text].reduce((sum, c) => sum + (c > "\u2e7f" ? 12 : 6.4), 12); // about, in pixels
const WORDS = ["reply", "lost", "note"]; // kinds whose text is a word of the catalogue
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export const said = (m) => (WORDS.includes(m.kind) ? t(`play-${m.text}`) : m.text);
export const time = (us) => (us < 1000 ? `${us} µs` : `${(us / 1000).toFixed(1)} ms`);

function Arrow({ m, y, at, width }) {
    const text = said(m), wide = Math.min(width - LEFT, length(text)) / 2;
    const a = at(m.from), b = at(m.to), middle = Math.min(Math.max((a + b) / 2, LEFT + wide), width - wide);
    const way = b > a ? 1 : -1;
    if (m.from === m.to)
        return <g class="m at-one"><rect x={middle - wide} y={y - 13} width={2 * wide} height="18" rx="4" /><text x={middle} y={y}>{text}</text></g>;
    const end = m.kind === "lost" ? a + (b - a) * 0.55 : b;
    return <g class={"m " + m.kind}><text x={middle} y={y - 5}>{text}</text><line x1={a} y1={y} x2={end} y2={y} />
        {m.kind === "lost" ? <path d={`M${end - 6} ${y - 6}l12 12m0 -12l-12 12`} /> : <path d={`M${end - way * 7} ${y - 4}L${end} ${y}L${end - way * 7} ${y + 4}`} />}</g>;
}

export function Diagram({ told, name }) {
    const [step, setStep] = useState(0), count = told.messages.length;
    useEffect(() => {
        if (still()) { setStep(count); return undefined; }
        setStep(1);
        const timer = setInterval(() => setStep((n) => { if (n >= count) clearInterval(timer); return Math.min(n + 1, count); }), STEP_MS);
        return () => clearInterval(timer);
    }, [told]);
    const actors = told.actors.filter((a) => told.messages.some((m) => m.from === a || m.to === a));
    const width = LEFT + actors.length * LANE, height = HEAD + count * ROW + 12;
    const at = (actor) => LEFT + actors.indexOf(actor) * LANE + LANE / 2;
    return <div class="scroll diagram" tabIndex={0} role="region" aria-label={t("play-diagram")}>
        <svg viewBox={`0 0 ${width} ${height}`} style={{ maxWidth: `${width}px` }} role="img" aria-label={t("play-messages", { n: count })} data-shown={step} data-count={count}>
            {actors.map((a) => <g key={a} class="lane"><text x={at(a)} y="18">{name(a)}</text><line x1={at(a)} y1={HEAD - 6} x2={at(a)} y2={height} /></g>)}
            {told.messages.slice(0, step).map((m, i) => <g key={i}><text class="at" x="4" y={HEAD + (i + 0.8) * ROW}>{time(m.at_us)}</text>
                <Arrow m={m} y={HEAD + (i + 0.8) * ROW} at={at} width={width} /></g>)}</svg></div>;
}
