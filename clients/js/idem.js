/*
 * idem.js - submit a form once, however often it is clicked. No dependency.
 *
 *   <script src="/idem.js"></script>
 *   <form action="/orders" method="post" data-idem-token="/token"
 *         data-idem-next="/thanks"> ... </form>
 *
 * Each page that is shown has one token for each form. The script fetches it
 * from data-idem-token when the page is shown, or takes it from the hidden field
 * that data-idem-field names, sends it in the header `token`, disables the
 * submit buttons meanwhile, and retries with the same token where that is safe.
 *
 *   the same page    The token is kept in the browser's history entry. Reload,
 *                    Back and a click after a lost answer therefore repeat the
 *                    request, and the gateway answers as it did the first time.
 *   a new visit      has a new history entry, so it gets a new token ...
 *   ... while the    of a request with the same content is still missing (the
 *   answer           tab was closed, say): then the new page repeats that
 *                    request. The token is in localStorage until the answer.
 *   another content  is another request, with a new token.
 *
 * After success the page moves on to data-idem-next, or to where the answer
 * redirected; otherwise "idem:done" and "idem:failed" events on the form bring
 * the answer, and the form gets the next token: the one in the answer's header
 * Idempotency-Token, or a new one. A submit event that the page cancelled is
 * left alone. Names in data-idem-ignore ("csrf") are fields that differ from
 * visit to visit and say nothing about the content. data-idem-attempts says how
 * often a request is tried (6).
 *
 * By hand: const answer = await idem.submit('/orders', {body: '{"item":7}'}).
 * (await idem.judge(answer)).class says what became of it: "failed for good".
 */
(function (root) {
    "use strict";

    const PENDING_MS = 24 * 3600 * 1000; /* as long as the gateway keeps answers */
    const FORMS = "form[data-idem-token], form[data-idem-field]";

    const pause = (ms) => new Promise((done) => setTimeout(done, ms));

    async function fetchToken(path) {
        const answer = await fetch(path, {method: "POST", credentials: "same-origin"});
        if (!answer.ok) {
            throw new Error("no token from " + path + ": status " + answer.status);
        }
        const text = (await answer.text()).trim();
        try {
            const parsed = JSON.parse(text);
            return typeof parsed === "string" ? parsed : parsed.token;
        } catch (notJson) {
            return text;
        }
    }

    /* ---- what an answer means ------------------------------------------- */

    /* The gateway's own answers are problems that say it themselves. */
    async function readProblem(answer) {
        if (!/problem\+json/.test(answer.headers.get("Content-Type") || "")) {
            return {};
        }
        try {
            return await answer.clone().json() || {};
        } catch (notJson) {
            return {};
        }
    }

    const isProblem = (problem, name) => String(problem.type || "").endsWith("/" + name);

    /* With one token a repeat is always safe; this says whether it can help. */
    function mayRetry(answer, problem) {
        if (typeof problem.retryable === "boolean") {
            return problem.retryable;
        }
        return answer.status === 503 || answer.status === 429 || answer.status === 425 ||
            (answer.status === 409 && answer.headers.has("Retry-After"));
    }

    /* Is this the last word about the request? Not if the outcome is unknown,
     * and not if the token was used for a request that differed a little. */
    function isFinal(answer, problem) {
        if (mayRetry(answer, problem) || isProblem(problem, "mismatch")) {
            return false;
        }
        if (problem.class) {
            return problem.class !== "in progress" && problem.class !== "outcome unknown";
        }
        return answer.status !== 504;
    }

    /* For pages: what became of the request. The class is that of a problem
     * (docs/problems.md), null for an answer of the service itself. */
    async function judge(answer) {
        const problem = await readProblem(answer);
        return {class: problem.class || null, retryable: mayRetry(answer, problem), final: isFinal(answer, problem)};
    }

    function waitMs(answer, attempt) {
        const seconds = answer && Number(answer.headers.get("Retry-After"));
        const backoff = Math.min(200 * 2 ** attempt, 5000) * (0.5 + Math.random() / 2);
        return seconds > 0 ? Math.min(seconds * 1000, 10000) : backoff;
    }

    async function submit(url, options) {
        const o = Object.assign({method: "POST", tokenPath: "/token", attempts: 6}, options);
        const token = o.token || await fetchToken(o.tokenPath);
        const headers = new Headers(o.headers || {});
        headers.set("token", token);
        let answer, trouble;
        for (let attempt = 0; attempt < o.attempts; attempt++) {
            try {
                answer = await fetch(url, {method: o.method, body: o.body, headers: headers,
                                           credentials: "same-origin"});
                trouble = null;
                if (!mayRetry(answer, await readProblem(answer))) {
                    return answer;
                }
            } catch (error) {
                trouble = error; /* the network: nobody knows, so ask with the same token */
                answer = null;
            }
            await pause(waitMs(answer, attempt));
        }
        if (trouble) {
            throw trouble;
        }
        return answer;
    }

    /* ---- the token of a page -------------------------------------------- */

    /* A form's name on this site. */
    function nameOf(form) {
        const place = root.location.pathname + root.location.search;
        const own = form.id || form.getAttribute("name") || Array.from(root.document.forms).indexOf(form);
        return "idem:" + place + "#" + own;
    }

    /* What is known of this page's request: {token}, or {token, shown, all, at}
     * once it was sent. shown and all are digests of its content. */
    function recall(form) {
        const state = root.history.state;
        return form.idemPage || (state && state.idem && state.idem[nameOf(form)]) || {};
    }

    function keep(form, page) {
        const state = root.history.state;
        form.idemPage = page;
        if (state !== null && typeof state !== "object") {
            return; /* the page has a state of its own that nothing can be added to */
        }
        const idem = Object.assign({}, state && state.idem, {[nameOf(form)]: page});
        root.history.replaceState(Object.assign({}, state, {idem: idem}), "");
    }

    /* localStorage may be full, or forbidden: then a closed tab is not covered. */
    function pending(form, page) {
        try {
            if (page) {
                root.localStorage.setItem(nameOf(form), JSON.stringify(page));
            } else if (page === null) {
                root.localStorage.removeItem(nameOf(form));
            }
            const found = JSON.parse(root.localStorage.getItem(nameOf(form))) || {};
            return Date.now() - found.at < PENDING_MS ? found : {};
        } catch (none) {
            return {};
        }
    }

    function digest(text) {
        let a = 0x811c9dc5, b = 0x9747b28c;
        for (let i = 0; i < text.length; i++) {
            a = Math.imul(a ^ text.charCodeAt(i), 0x01000193);
            b = Math.imul(b ^ text.charCodeAt(i), 0x85ebca6b) ^ (b >>> 13);
        }
        return (a >>> 0).toString(36) + "-" + (b >>> 0).toString(36);
    }

    const fieldOf = (form) => form.querySelector(
        'input[name="' + (form.getAttribute("data-idem-field") || "idem-no-such-field") + '"]');

    /* A page that is loaded again may have other hidden fields (a CSRF token)
     * and still be the same page: that is why there are two digests. */
    function contentOf(form, request) {
        const ignored = (form.getAttribute("data-idem-ignore") || "").split(/[\s,]+/)
            .concat(form.getAttribute("data-idem-field") || []);
        const hidden = Array.from(form.querySelectorAll("input[type=hidden]")).map((e) => e.name);
        const all = [], shown = [];
        for (const [name, value] of request.data.entries()) {
            const said = [name, typeof value === "string" ? value : [value.name, value.size, value.lastModified]];
            if (!ignored.includes(name)) {
                all.push(said);
                if (!hidden.includes(name)) {
                    shown.push(said);
                }
            }
        }
        const where = [request.method, request.url];
        return {all: digest(JSON.stringify([where, all])), shown: digest(JSON.stringify([where, shown]))};
    }

    async function freshToken(form) {
        const field = fieldOf(form), path = form.getAttribute("data-idem-token");
        if (field && field.value && field.value !== form.idemSpent) {
            return field.value;
        }
        if (!path) {
            throw new Error("the form has no token: load the page again");
        }
        return fetchToken(path);
    }

    /* The page is shown: have a token before anybody clicks. Without the
     * network there is none yet, and the click asks again. */
    function show(form) {
        const page = recall(form), field = fieldOf(form);
        if (page.shown || (page.token && !(field && field.value))) {
            form.idemPage = page;
            return;
        }
        form.idemShowing = freshToken(form).then((token) => keep(form, {token: token}), () => undefined);
    }

    /* The token that this click is to use, and whether it was sent before. */
    async function pageOf(form, content) {
        await form.idemShowing;
        const page = recall(form), left = pending(form);
        if (page.shown === content.shown) {
            return page;
        }
        if (left.all === content.all) {
            return left;
        }
        return {token: page.token && !page.shown ? page.token : await freshToken(form)};
    }

    /* ---- forms ------------------------------------------------------------ */

    /* A button that the page itself had disabled stays so. */
    function setBusy(form, busy) {
        if (busy) {
            form.idemDisabled = Array.from(form.elements)
                .concat(Array.from(form.querySelectorAll("input[type=image]")))
                .filter((e) => (e.type === "submit" || e.type === "image") && !e.disabled);
        }
        (form.idemDisabled || []).forEach((button) => {
            button.disabled = busy;
        });
        form.idemBusy = busy;
        form.toggleAttribute("aria-busy", busy);
    }

    /* What a browser would send: where, how, and the button that was used. Read
     * from attributes, for a field may be called "action" or "method". */
    function describe(form, button) {
        const read = (name) => (button && button.getAttribute("form" + name)) || form.getAttribute(name);
        const data = new FormData(form);
        if (button && button.name) {
            data.append(button.name, button.value);
        }
        return {
            url: new URL(read("action") || "", root.document.baseURI).href,
            method: (read("method") || "post").toUpperCase(),
            multipart: read("enctype") === "multipart/form-data",
            data: data
        };
    }

    /* The token goes in the header, and in its field if the form has one. */
    async function send(form, request, page, content) {
        const field = fieldOf(form);
        const sent = Object.assign({at: Date.now()}, page, content);
        if (field) {
            request.data.set(field.name, page.token);
        }
        keep(form, sent);
        pending(form, sent);
        return submit(request.url, {
            method: request.method, token: page.token,
            attempts: Number(form.getAttribute("data-idem-attempts")) || 6,
            body: request.multipart ? request.data : new URLSearchParams(request.data)
        });
    }

    /* The last word was said, and the page stays: its next request is another. */
    function renew(form, answer) {
        const next = answer.headers.get("Idempotency-Token"), field = fieldOf(form);
        if (field) {
            form.idemSpent = field.value;
            field.value = next || field.value;
        }
        keep(form, next ? {token: next} : {});
        show(form);
    }

    async function submitForm(form, button) {
        if (form.idemBusy) {
            return; /* a second click while the first one works */
        }
        const request = describe(form, button), content = contentOf(form, request);
        setBusy(form, true);
        try {
            let page = await pageOf(form, content);
            let answer = await send(form, request, page, content), problem = await readProblem(answer);
            if (isProblem(problem, "token-unknown") && !page.shown && form.hasAttribute("data-idem-token")) {
                /* The page was open for longer than its token lives. */
                page = {token: await fetchToken(form.getAttribute("data-idem-token"))};
                answer = await send(form, request, page, content);
                problem = await readProblem(answer);
            }
            const final = isFinal(answer, problem);
            const next = form.getAttribute("data-idem-next") || (answer.redirected && answer.url);
            if (final) {
                pending(form, null);
            }
            if (answer.ok && next) {
                root.location.assign(next);
                return; /* busy until this page is gone; Back finds its token */
            }
            if (final) {
                renew(form, answer);
            }
            form.dispatchEvent(new CustomEvent(answer.ok ? "idem:done" : "idem:failed",
                                               {detail: answer, bubbles: true}));
        } catch (error) {
            form.dispatchEvent(new CustomEvent("idem:failed", {detail: error, bubbles: true}));
        }
        setBusy(form, false);
    }

    function onSubmit(event) {
        const form = event.target, button = event.submitter;
        if (event.defaultPrevented || !form.matches(FORMS)) {
            return;
        }
        const method = (button && button.getAttribute("formmethod")) || form.getAttribute("method");
        if (/^(get|dialog)$/i.test(method)) {
            return; /* changes nothing, so it needs no token */
        }
        event.preventDefault();
        submitForm(form, button);
    }

    if (root.document) {
        root.document.addEventListener("submit", onSubmit);
        root.addEventListener("pageshow", (event) => {
            root.document.querySelectorAll(FORMS).forEach((form) => {
                if (event.persisted) {
                    setBusy(form, false); /* back to a page that the browser had kept */
                }
                show(form);
            });
        });
    }

    root.idem = {submit: submit, judge: judge, fetchToken: fetchToken, submitForm: submitForm};
})(typeof window === "undefined" ? globalThis : window);
