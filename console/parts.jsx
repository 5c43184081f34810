// Small pieces that every page uses.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, message, session } from "./api.js";
import { language, t } from "./words.js";

export function when(ms) {
    return ms > 0 ? new Date(ms).toLocaleString(language.value, { dateStyle: "short", timeStyle: "medium" }) : "–";
}

export function span(ms) {
    const s = Math.max(0, Math.round(ms / 1000));
    const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    const at = Math.max(0, parts.findIndex(([n]) => s >= n));
    if (s === 0) return "0 s";
    const [n, unit] = parts[at], [m, smaller] = parts[at + 1] || [1, ""];
    const rest = smaller ? Math.floor((s % n) / m) : 0;
    return `${Math.floor(s / n)} ${unit}` + (rest ? ` ${rest} ${smaller}` : "");
}

export const amount = (n, digits = 0) => (n === null || n === undefined ? "–"
    : n.toLocaleString(language.value, { maximumFractionDigits: digits }));

// Run what a person asked for; what goes wrong is told.
export async function attempt(what) {
    try {
        return await what();
    } catch (error) {
        if (error instanceof Error) message.value = t("failed", { why: error.message });
        else message.value = t(...error);
        return undefined;
    }
}

export function Field({ label, as: As = "input", ...rest }) {
    return <label class="field"><span>{label}</span><As {...rest} /></label>;
}

export function Choice({ label, options, ...rest }) {
    return <label class="field"><span>{label}</span>
        <select {...rest}>{options.map(([value, text]) => <option key={value} value={value}>{text}</option>)}</select></label>;
}

export function Table({ label, heads, children }) {
    return <div class="scroll" tabIndex={0} role="region" aria-label={label}><table>
        <thead><tr>{heads.map((h) => <th key={h} scope="col">{h}</th>)}</tr></thead><tbody>{children}</tbody></table></div>;
}

export function Facts({ facts }) {
    return <dl class="facts">{facts.filter(([, v]) => v !== undefined && v !== "").map(([k, v]) =>
        <div key={k}><dt>{k}</dt><dd>{v}</dd></div>)}</dl>;
}

// A drawer at the side; Escape closes it.
export function Drawer({ title, onClose, children }) {
    const box = useRef();
    useEffect(() => { box.current.showModal(); }, []);
    return <dialog ref={box} class="drawer" aria-label={title} onClose={onClose}>
        <header><h2>{title}</h2><button type="button" class="quiet" onClick={() => box.current.close()}>{t("close")}</button></header>
        {children}</dialog>;
}

// What an operator does: a reason, the secret again, and then it is done.
export function Operate({ label, help, disabled, children, act }) {
    const [reason, setReason] = useState(""), [secret, setSecret] = useState(""), [working, setWorking] = useState(false);
    const submit = async (event) => {
        event.preventDefault();
        setWorking(true);
        await attempt(() => act(reason, secret));
        setWorking(false);
        setSecret("");
    };
    if (!session.value.rights.includes("operate")) return <p class="note">{t("noRight")}</p>;
    return <form class="operate" onSubmit={submit}>{children}{help && <p class="note">{help}</p>}
        <Field label={t("reason")} name="reason" required maxLength={255} value={reason} onInput={(e) => setReason(e.target.value)} />
        {session.value.cookie && <Field label={t("secretAgain")} name="secret" type="password" autocomplete="current-password" required
            value={secret} onInput={(e) => setSecret(e.target.value)} />}
        <button disabled={working || disabled}>{label}</button></form>;
}

export async function logIn(name, secret) {
    session.value = await call("POST", "/v1/session", { name, secret });
    message.value = "";
}
