// Doubts, oldest first, and finding records.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, may, query, serverNow } from "./api.js";
import { amount, attempt, Choice, Field, span, Table } from "./parts.jsx";
import { isDoubt, nameOf, Proposals, RecordDrawer } from "./record.jsx";
import { useEvery } from "./state.js";
import { t } from "./words.js";

const LOOK_MS = 900; // then the person decides whether to look on
const ENOUGH = 50;

export function Doubts() {
    const [list, setList] = useState(null), [open, setOpen] = useState(null);
    const load = () => attempt(async () => setList(await call("GET", "/v1/doubts?count=200")));
    useEvery(5000, load);
    if (!may("list")) return <p>{t("noRight")}</p>;
    if (!list) return <p>{t("loading")}</p>;
    return <><Proposals onDone={load} /><p class="note">{t("doubtsHelp")}</p>
        {!list.looked ? <p>{t("notLooked")}</p> : list.records.length === 0 ? <p class="empty">{t("noDoubts")}</p> : <>
            <p>{t("listed", { shown: list.records.length, count: amount(list.count) })}</p>
            <Table label={t("doubts")} heads={[t("since"), t("scope"), t("key"), t("began"), t("attempt"), t("details")]}>
                {list.records.map((r) => <tr key={nameOf(r, "scope") + "\n" + nameOf(r, "id")}>
                    <td>{span(serverNow() - r.lease_until)}</td><td>{nameOf(r, "scope")}</td><td>{nameOf(r, "id")}</td><td>{r.subject}</td><td>{r.attempt}</td>
                    <td><button type="button" onClick={() => setOpen(r)} aria-label={`${t("settle")} ${nameOf(r, "id")}`}>{t("settle")}</button></td></tr>)}</Table></>}
        {open && <RecordDrawer record={open} onClose={() => { setOpen(null); load(); }} />}</>;
}

const STATES = ["issued", "executing", "succeeded", "failed", "free"], TYPES = ["request", "token", "lock", "worker"];
const AGES = [["", 0], ["1 min", 6e4], ["1 h", 36e5], ["1 d", 864e5], ["7 d", 6048e5]];

export function Records() {
    const [wanted, setWanted] = useState({ scope: "", id: "", state: "", type: "", age: "" });
    const [found, setFound] = useState(null), [open, setOpen] = useState(null);
    const running = useRef(0);
    const field = (name) => ({ name, value: wanted[name], onInput: (e) => setWanted({ ...wanted, [name]: e.target.value }) });
    const look = (from) => attempt(async () => {
        const run = ++running.current;
        const { scope, id, state, type, age } = wanted;
        if (scope && id && !from && !state && !age && (type === "" || type === "request")) {
            const said = await call("GET", `/v1/records/${encodeURIComponent(scope)}/${encodeURIComponent(id)}`);
            if (run !== running.current) return;
            setFound({ records: said.record ? [said.record] : [], cursor: "0", parts: 1 });
            return;
        }
        const filter = { scope, id, state, type, updated_before: age ? Math.round(serverNow()) - Number(age) : "" };
        let now = from || { records: [], cursor: "0", parts: 0 };
        let count = ENOUGH;
        const until = Date.now() + LOOK_MS, enough = now.records.length + ENOUGH;
        do {
            const said = await call("GET", query("/v1/records", { ...filter, count, cursor: now.cursor }));
            if (run !== running.current) return;
            now = { records: [...now.records, ...said.records], cursor: said.cursor, parts: now.parts + 1 };
            setFound(now);
            if (said.records.length < ENOUGH / 10) count = 1000; // few match: longer strides
        } while (now.cursor !== "0" && now.records.length < enough && Date.now() < until);
    });
    useEffect(() => { if (may("list")) look(); }, []);
    return <><form class="bar" role="search" onSubmit={(e) => { e.preventDefault(); look(); }}>
        <Field label={t("scope")} type="search" {...field("scope")} /><Field label={t("key")} type="search" {...field("id")} />
        <Choice label={t("state")} {...field("state")} options={[["", t("any")], ...STATES.map((s) => [s, s])]} />
        <Choice label={t("type")} {...field("type")} options={[["", t("any")], ...TYPES.map((s) => [s, s])]} />
        <Choice label={t("olderThan")} {...field("age")} options={AGES.map(([text, ms]) => [ms || "", text || t("any")])} />
        <button>{t("find")}</button><p class="note">{t("findHelp")}</p></form>
        {found && (found.records.length === 0 && found.cursor === "0" ? <p class="empty">{t("absent")}</p> : <>
            <Table label={t("records")} heads={[t("scope"), t("key"), t("type"), t("state"), t("age"), t("details")]}>
                {found.records.map((r) => <tr key={r.type + nameOf(r, "scope") + "\n" + nameOf(r, "id")}>
                    <td>{nameOf(r, "scope")}</td><td>{nameOf(r, "id")}</td><td>{r.type}</td><td>{isDoubt(r) ? t("doubt") : r.state}</td>
                    <td>{span(serverNow() - r.updated)}</td>
                    <td><button type="button" onClick={() => setOpen(r)} aria-label={`${t("details")} ${nameOf(r, "id")}`}>{t("details")}</button></td></tr>)}</Table>
            {found.cursor !== "0" && <p>{t("looked", { n: found.parts })} <button type="button" onClick={() => look(found)}>{t("more")}</button></p>}</>)}
        {open && <RecordDrawer record={open} onClose={() => { setOpen(null); look(); }} />}</>;
}
