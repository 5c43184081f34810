// The console: who is logged in, which page is shown, in which language and in which colours.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { call, followStats, loggedOut, message, refreshSession, session } from "./api.js";
import { Audit, LocksAndIds, RoutesAndConsumers } from "./others.jsx";
import { Overview } from "./overview.jsx";
import { attempt, Field, logIn } from "./parts.jsx";
import { Play } from "./play.jsx";
import { Doubts, Records } from "./records.jsx";
import { signal, use } from "./state.js";
import { language, switchLanguage, t } from "./words.js";

const PAGES = [["overview", Overview], ["doubts", Doubts], ["records", Records], ["locks", LocksAndIds], ["routes", RoutesAndConsumers], ["audit", Audit], ["play", Play]];
const shown = signal(location.hash.slice(2));
const theme = signal(localStorage.getItem("idem-theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
addEventListener("hashchange", () => { shown.value = location.hash.slice(2); message.value = ""; });
addEventListener("keydown", (e) => { // 1 to 7 show a page
    const typing = e.target.closest("input, textarea, select, dialog");
    if (!typing && !e.ctrlKey && !e.altKey && !e.metaKey && PAGES[Number(e.key) - 1]) location.hash = "/" + PAGES[Number(e.key) - 1][0];
});

function Login() {
    const [name, setName] = useState(""), [secret, setSecret] = useState("");
    const submit = (e) => { e.preventDefault(); attempt(() => logIn(name, secret)); };
    return <main id="main" class="login"><h1>idem</h1><form onSubmit={submit}>
        <Field label={t("name")} name="name" autocomplete="username" required value={name} onInput={(e) => setName(e.target.value)} />
        <Field label={t("secret")} name="secret" type="password" autocomplete="current-password" required value={secret} onInput={(e) => setSecret(e.target.value)} />
        <button>{t("login")}</button><p class="note">{t("loginHelp")}</p></form></main>;
}

function Inside() {
    const [address] = use(shown), [name, path] = address.split("/");
    const only = session.value.playground, pages = only ? PAGES.filter(([p]) => p === "play") : PAGES;
    const [word, Page] = pages.find(([p]) => p === name) || pages[0];
    useEffect(() => { if (!only) followStats(); }, []);
    return <>{!only && <nav aria-label={t("pages")}>{pages.map(([p], i) =>
        <a key={p} href={"#/" + p} aria-current={p === word ? "page" : undefined} aria-keyshortcuts={String(i + 1)}>{t(p)}</a>)}</nav>}
        <main id="main" tabIndex={-1}><h1>{t(word)}</h1>{!session.value.login && !only && <p class="note">{t("anyone")}</p>}
            <Page key={word + language.value} theme={theme.value} path={path} /></main></>;
}

function App() {
    const [who, , said, colours] = use(session, language, message, theme);
    useEffect(() => { attempt(refreshSession); }, []);
    useEffect(() => {
        document.documentElement.lang = language.value === "zh" ? "zh-CN" : "en";
        document.documentElement.dataset.theme = colours;
        document.title = "idem";
    });
    const turn = () => { theme.value = colours === "dark" ? "light" : "dark"; localStorage.setItem("idem-theme", theme.value); };
    const leave = () => attempt(async () => { session.value = await call("DELETE", "/v1/session"); });
    return <><a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>{t("skip")}</a>
        <header class="top"><b>idem</b><a href="/console/licenses.txt"><small>{who?.version}</small></a><span class="grow" />
            {who?.name && !who.playground && <span class="who">{who.name}</span>}
            {who?.cookie && <button type="button" class="quiet" onClick={leave}>{t("logout")}</button>}
            <button type="button" class="quiet" onClick={turn} aria-label={t("theme")}>◐</button>
            <button type="button" class="quiet" lang={language.value === "en" ? "zh-CN" : "en"} onClick={switchLanguage}>{t("language")}</button></header>
        <div class="message" role="status">{said}{said && <button type="button" class="quiet" onClick={() => { message.value = ""; }}>{t("close")}</button>}</div>
        {!who ? <main id="main">{t("loading")}</main> : loggedOut() ? <Login /> : <Inside />}</>;
}

render(<App />, document.body);
