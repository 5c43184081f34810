/*
 * idem.js - submit a form once, however often it is clicked. No dependency.
 *
 *   <script src="idem.js"></script>
 *   <form action="/orders" method="post" data-idem-token="/token"
 *         data-idem-next="/thanks"> ... </form>
 *
 * Fetches a token from data-idem-token, sends the form with it in the header
 * `token`, disables the buttons meanwhile, and retries with the SAME token where
 * that is safe. data-idem-next is the page to move on to after success; "idem:done"
 * and "idem:failed" events on the form bring the answer otherwise.
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
        return answer.status === 503 || answer.status === 429 ||
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

    function setBusy(form, busy) {
        form.querySelectorAll("button, input[type=submit]").forEach((button) => {
            button.disabled = busy;
        });
        form.toggleAttribute("aria-busy", busy);
    }

    async function submitForm(form) {
        if (form.idemBusy) {
            return; /* a second click while the first one works */
        }
        form.idemBusy = true;
        setBusy(form, true);
        const data = new FormData(form);
        const multipart = form.enctype === "multipart/form-data";
        try {
            /* The token stays with the form until an answer is final, so that
             * another click after a lost answer is a repeat, not a new order. */
            form.idemToken = form.idemToken || await fetchToken(form.dataset.idemToken);
            const answer = await submit(form.action, {
                method: (form.method || "post").toUpperCase(),
                body: multipart ? data : new URLSearchParams(data),
                token: form.idemToken
            });
            if (isFinal(answer)) {
                form.idemToken = null;
            }
            if (answer.ok && form.dataset.idemNext) {
                root.location.assign(form.dataset.idemNext);
                return;
            }
            form.dispatchEvent(new CustomEvent(answer.ok ? "idem:done" : "idem:failed",
                                               {detail: answer, bubbles: true}));
        } catch (error) {
            form.dispatchEvent(new CustomEvent("idem:failed", {detail: error, bubbles: true}));
        }
        form.idemBusy = false;
        setBusy(form, false);
    }

    if (root.document) {
        root.document.addEventListener("submit", (event) => {
            if (event.target.dataset && event.target.dataset.idemToken) {
                event.preventDefault();
                submitForm(event.target);
            }
        });
    }

    root.idem = {submit: submit, fetchToken: fetchToken, submitForm: submitForm};
})(typeof window === "undefined" ? globalThis : window);
