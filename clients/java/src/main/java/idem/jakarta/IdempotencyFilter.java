package idem.jakarta;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.function.Function;

import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.FilterConfig;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;

import idem.Claim;
import idem.HttpAnswer;
import idem.IdemClient;
import idem.IdemException;
import idem.IdempotencyKey;
import idem.Mode;
import idem.Options;
import idem.Problem;

/**
 * Speaks Idempotency-Key for the servlets behind it, with the statuses and problems of the gateway (docs/gateway.md). It comes for
 * {@code jakarta.servlet} and, made from the same source, as idem.javax.IdempotencyFilter for {@code javax.servlet}.
 *
 * <pre>context.addFilter("idem", new IdempotencyFilter(client).scope(HttpServletRequest::getRemoteUser))</pre>
 *
 * The servlet finds its {@link Claim} in the request's attribute "idem.claim". The answer of a guarded request is held until it is recorded, so such a request cannot be handled asynchronously. What sendError and
 * an exception mean to the client is part of the recorded answer: a short text, not the container's error page.
 */
public final class IdempotencyFilter implements Filter {
    private final IdemClient client;
    private boolean ours;
    private Options options;
    private Function<HttpServletRequest, String> scope = IdempotencyFilter::caller;
    private Set<String> methods = Set.of("POST", "PATCH");
    private boolean required;
    private int maxBody = 1 << 20;

    /** The options of the client hold for all requests: mode, ttl, lease, waitFor. */
    public IdempotencyFilter(IdemClient client) {
        this.client = client;
        this.options = client.options();
    }

    /** For web.xml: a client of IDEM_SERVER. Parameters: required, mode. */
    public IdempotencyFilter() {
        this(IdemClient.open());
        ours = true;
    }

    @Override
    public void init(FilterConfig config) {
        if (parameter(config, "required", "true", "false"))
            required = true;
        if (parameter(config, "mode", "loose", "strict"))
            options = options.mode(Mode.LOOSE);
    }

    /** Whether the parameter has the first value. "yes" for "true" would let requests without a key pass unguarded. */
    private static boolean parameter(FilterConfig config, String name, String yes, String no) {
        var value = config.getInitParameter(name);
        if (value != null && !value.equalsIgnoreCase(yes) && !value.equalsIgnoreCase(no))
            throw new IllegalArgumentException("the parameter " + name + " is \"" + yes + "\" or \"" + no + "\", not \"" + value + "\"");
        return yes.equalsIgnoreCase(value);
    }

    @Override
    public void destroy() {
        if (ours)
            client.close();
    }

    /**
     * Who asks. Without this it is a digest of the Authorization header, or "anonymous". A request for which it is null or empty is
     * treated like one without a key, so that it never shares a scope with other callers.
     */
    public IdempotencyFilter scope(Function<HttpServletRequest, String> value) {
        scope = value;
        return this;
    }

    /** Refuse requests without a key. */
    public IdempotencyFilter required() {
        required = true;
        return this;
    }

    /** Which methods are guarded: POST and PATCH. */
    public IdempotencyFilter methods(String... values) {
        for (var method : values) // a request would never match it, and pass unguarded
            if (!method.equals(method.toUpperCase(Locale.ROOT)))
                throw new IllegalArgumentException("methods are written in capitals: " + method.toUpperCase(Locale.ROOT) + ", not " + method);
        methods = Set.of(values);
        return this;
    }

    /** The longest body of a guarded request: 1 MiB. */
    public IdempotencyFilter maxBody(int bytes) {
        maxBody = bytes;
        return this;
    }

    private static String caller(HttpServletRequest request) {
        var credential = request.getHeader("Authorization");
        return credential == null ? "anonymous" : "caller-" + IdemClient.digest(credential.getBytes(StandardCharsets.UTF_8)).substring(0, 40);
    }

    @Override
    public void doFilter(ServletRequest plain, ServletResponse answer, FilterChain chain) throws IOException, ServletException {
        var request = (HttpServletRequest) plain;
        var response = (HttpServletResponse) answer;
        List<String> keys = Collections.list(request.getHeaders("Idempotency-Key"));
        if (!methods.contains(request.getMethod()) || keys.isEmpty() && !required) {
            chain.doFilter(request, response);
            return;
        }
        if (keys.isEmpty()) {
            send(response, Problem.KEY_MISSING.answer());
            return;
        }
        String key;
        try {
            if (keys.size() > 1)
                throw new IllegalArgumentException("The key was sent twice.");
            key = IdempotencyKey.parse(keys.get(0));
        } catch (IllegalArgumentException e) {
            send(response, Problem.KEY_MALFORMED.answer(400, e.getMessage()));
            return;
        }
        var who = scope.apply(request);
        if (who != null && !who.isEmpty())
            read(key, who, request, response, chain);
        else if (required)
            send(response, Problem.SCOPE_MISSING.answer());
        else
            chain.doFilter(request, response);
    }

    private void read(String key, String who, HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws IOException {
        var held = new HeldRequest(request);
        // A browser sends a multipart body with another boundary at every try: it stays with the container and out of the fingerprint.
        if (!held.isMultipart() && !held.read(maxBody)) {
            send(response, Problem.BODY_TOO_LARGE.answer());
            return;
        }
        guard(key, who, held, response, chain);
    }

    private void guard(String key, String who, HeldRequest request, HttpServletResponse response, FilterChain chain) throws IOException {
        var query = request.getQueryString();
        var asked = new ArrayList<Object>(List.of(request.getMethod(), request.getRequestURI() + (query == null ? "" : "?" + query)));
        asked.add(request.digest());
        try {
            var begun = client.begin(key, options.scope(who).arguments(asked));
            if (begun.claim == null) {
                replay(begun, response);
                return;
            }
            try {
                run(begun.claim, request, response, chain);
            } finally {
                client.abandon(begun.claim); // whatever went wrong: nobody renews what nobody works on
            }
        } catch (IdemException.Mismatch e) {
            send(response, Problem.MISMATCH.answer());
        } catch (IdemException.InProgress e) {
            response.setHeader("Retry-After", String.valueOf(Math.max(1, (e.retryAfter().toMillis() + 999) / 1000)));
            send(response, Problem.IN_PROGRESS.answer());
        } catch (IdemException.NotExecuted e) {
            request.getServletContext().log("idem: a request was not executed: " + e.getMessage());
            if (e instanceof IdemException.Refused && ((IdemException.Refused) e).word().equals("ERR")) {
                send(response, Problem.SCOPE_REFUSED.answer()); // the key was checked: what is left is the scope
                return;
            }
            response.setHeader("Retry-After", "1");
            send(response, Problem.NOT_EXECUTED.answer());
        } catch (IdemException.OutcomeUnknown e) {
            send(response, Problem.OUTCOME_UNKNOWN.answer());
        }
    }

    private void replay(IdemClient.Begun begun, HttpServletResponse response) throws IOException {
        boolean http = begun.kind.equals("http");
        if (begun.state.equals("failed") && (!http || begun.result == null)) {
            send(response, (http ? Problem.FAILED : Problem.SETTLED).answer());
        } else if (begun.result == null) {
            send(response, Problem.NOT_REPLAYABLE.answer());
        } else {
            response.setHeader("Idempotent-Replayed", "true");
            send(response, http ? HttpAnswer.read(begun.result) : HttpAnswer.settled(begun.result));
        }
    }

    private void run(Claim claim, HeldRequest request, HttpServletResponse response, FilterChain chain) throws IOException {
        var held = new HeldResponse(response);
        request.setAttribute("idem.claim", claim);
        HttpAnswer answer;
        try {
            chain.doFilter(request, held);
            answer = held.answer();
        } catch (VirtualMachineError e) { // the outcome is unknown
            throw e;
        } catch (Exception | Error e) {
            // Frameworks wrap what a handler throws.
            var cause = e instanceof ServletException && e.getCause() instanceof IdemException ? e.getCause() : e;
            if (IdemException.isNotExecuted(cause) || cause instanceof IdemException.OutcomeUnknown) {
                undone(claim, cause, response);
                return;
            }
            request.getServletContext().log("idem: the service failed; that is recorded as its answer", e);
            held.sendError(500);
            answer = held.answer();
        }
        try {
            record(claim, answer, request.isCut());
        } catch (IdemException e) {
            request.getServletContext().log("idem: the answer to " + claim + " could not be recorded", e);
            response.reset();
            send(response, Problem.OUTCOME_UNKNOWN.answer(504,
                    "The request was executed and its answer could not be recorded. Do not repeat it with another key."));
            return;
        }
        held.send(answer);
    }

    /** The service says that it has certainly not happened, or that it does not know. */
    private void undone(Claim claim, Throwable said, HttpServletResponse response) throws IOException {
        response.reset();
        if (said instanceof IdemException.OutcomeUnknown) {
            send(response, Problem.OUTCOME_UNKNOWN.answer(504, "The service does not know whether the request was done."));
        } else {
            client.release(claim);
            response.setHeader("Retry-After", "1");
            send(response, Problem.NOT_EXECUTED.answer());
        }
    }

    private void record(Claim claim, HttpAnswer answer, boolean cut) {
        // What a service says about half an upload is no answer to the whole one. A 5xx may come after an effect.
        boolean free = answer.status == 425 || answer.status == 429 || options.isLoose() && answer.status >= 400
                || cut && answer.status >= 400 && answer.status < 500;
        if (free)
            client.release(claim);
        else if (answer.status >= 400)
            client.fail(claim, "http", answer.stored());
        else
            client.succeed(claim, "http", answer.stored());
    }

    private static void send(HttpServletResponse response, HttpAnswer answer) throws IOException {
        response.setStatus(answer.status);
        for (var header : answer.headers) {
            if (header[0].equalsIgnoreCase("Content-Type"))
                response.setContentType(header[1]);
            else
                response.addHeader(header[0], header[1]);
        }
        response.setContentLength(answer.body.length);
        response.getOutputStream().write(answer.body);
    }
}
