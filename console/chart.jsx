// A chart of columns of the figures over time, drawn by uPlot. Under it the legend with the last values, as text.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { amount } from "./parts.jsx";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const clock = (s) => new Date(s * 1000).toLocaleTimeString("en-GB");

function options(lines, stacked, width) {
    const axis = { stroke: css("--text"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
    return {
        width, height: 180, legend: { show: false }, cursor: { y: false },
        hooks: { setSelect: [(u) => { u.zoomed = u.select.width > 0; }] },
        scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
        axes: [{ ...axis, space: 90, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 56 }],
        series: [{}, ...lines.map((l) => ({
            stroke: css(l.color), width: stacked ? 1 : 2, fill: stacked ? css(l.color) : undefined, points: { show: false }, spanGaps: false,
        }))],
    };
}

// uPlot draws the first series first: of stacked ones that is the sum of all.
function dataOf(lines, stacked, times) {
    if (!stacked) return [times, ...lines.map((l) => l.values)];
    const sums = new Array(times.length).fill(0);
    const piled = lines.toReversed().map((l) => l.values.map((v, i) => (sums[i] += v || 0)));
    return [times, ...piled.toReversed()];
}

export function Chart({ title, times, lines, stacked = false, theme, digits = 0 }) {
    const box = useRef(), plot = useRef();
    useEffect(() => {
        const size = () => ({ width: Math.max(200, box.current.clientWidth), height: 180 });
        plot.current = new uPlot(options(lines, stacked, size().width), dataOf(lines, stacked, times), box.current);
        plot.current.over.addEventListener("dblclick", () => { plot.current.zoomed = false; });
        const watcher = new ResizeObserver(() => plot.current.setSize(size()));
        watcher.observe(box.current);
        return () => { watcher.disconnect(); plot.current.destroy(); };
    }, [theme, lines.length]);
    useEffect(() => { plot.current.setData(dataOf(lines, stacked, times), !plot.current.zoomed); });
    const last = (l) => l.values.findLast((v) => v !== null);
    const told = lines.map((l) => `${l.label} ${amount(last(l), digits)}`).join(", ");
    return <section class="chart"><h2>{title}</h2>
        <div ref={box} role="img" aria-label={`${title}: ${told}`} />
        <ul class="legend">{lines.map((l) => <li key={l.label}><i class={"dot " + l.color.slice(2)} />{l.label} <b>{amount(last(l), digits)}</b></li>)}</ul></section>;
}
