/*
 * idem.js - submit a form once, however often it is clicked. No dependency.
 *
 *   <script src="idem.js"></script>
 *   <form action="/orders" method="post" data-idem-token="/token"
 *         data-idem-next="/thanks"> ... </form>
 *
 * Fetches a token from data-idem-token, sends the form with it in the header
 * `token`, disables the submit buttons meanwhile, and retries with the SAME token
 * where that is safe. After success it moves on to data-idem-next, or to where
 * the answer redirected; otherwise "idem:done" and "idem:failed" events on the
 * form bring the answer. A submit event that the page cancelled is left alone.
 *
 * By hand: const answer = await idem.submit('/orders', {body: '{"item":7}'}).
 */
(function (root) {
    "use strict";

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

    /* The four classes of answers: done; not executed (try again); in progress
     * (wait); outcome unknown (ask, do not repeat blindly). With one token a
     * repeat is safe in all of them but the last, where it tells no more. */
    function mayRetry(answer) {
        return answer.status === 503 || answer.status === 429 || answer.status === 425 ||
            (answer.status === 409 && answer.headers.has("Retry-After"));
    }

    function isFinal(answer) {
        return !mayRetry(answer) && answer.status !== 504 && answer.status !== 409;
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
                if (!mayRetry(answer)) {
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
            body: read("enctype") === "multipart/form-data" ? data : new URLSearchParams(data)
        };
    }

    async function submitForm(form, button) {
        if (form.idemBusy) {
            return; /* a second click while the first one works */
        }
        const request = describe(form, button);
        setBusy(form, true);
        try {
            /* The token stays with the form until an answer is final, so that
             * another click after a lost answer is a repeat, not a new order. */
            form.idemToken = form.idemToken || await fetchToken(form.getAttribute("data-idem-token"));
            const answer = await submit(request.url, {
                method: request.method, body: request.body, token: form.idemToken
            });
            if (isFinal(answer)) {
                form.idemToken = null;
            }
            const next = form.getAttribute("data-idem-next") || (answer.redirected && answer.url);
            if (answer.ok && next) {
                root.location.assign(next);
                return; /* busy until this page is gone */
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
        if (event.defaultPrevented || !form.hasAttribute("data-idem-token")) {
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
        /* Back to a page that the browser had kept: it may be used again. */
        root.addEventListener("pageshow", (event) => {
            if (event.persisted) {
                root.document.querySelectorAll("form[data-idem-token]").forEach((form) => setBusy(form, false));
            }
        });
    }

    root.idem = {submit: submit, fetchToken: fetchToken, submitForm: submitForm};
})(typeof window === "undefined" ? globalThis : window);
