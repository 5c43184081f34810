package idem

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Guard speaks Idempotency-Key for a handler, with the statuses and problems of the gateway (docs/gateway.md). The answer of a guarded
// request is held until it is recorded. The handler finds its claim with Current(r.Context()); that context is cancelled when the lease is
// lost, and not when the client goes away.
type Guard struct {
	Client *Client
	// Scope says who asks. Without it: a digest of the Authorization header, or "anonymous". A request for which it gives "" is not
	// guarded, and with Required it is refused.
	Scope func(*http.Request) string
	// Required refuses requests without a key.
	Required bool
	// Methods that are guarded; POST and PATCH without it.
	Methods []string
	// MaxBody is the longest body of a guarded request; 1 MiB without it.
	MaxBody int64
	// Options change those of the client: Loose, TTL, Lease, Wait, Deadline.
	Options []Option
}

// Report tells the Guard that the request was certainly not executed (ErrNotExecuted: the key is free again) or that the handler does not
// know (ErrOutcomeUnknown). The client gets a problem instead of what the handler wrote.
func Report(ctx context.Context, err error) {
	if claim := Current(ctx); claim != nil {
		claim.report = err
	}
}

// Wrap guards a handler. It panics if the Client is missing, or the options or methods are wrong.
func (g Guard) Wrap(next http.Handler) http.Handler {
	if g.Methods == nil {
		g.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if g.MaxBody == 0 {
		g.MaxBody = 1 << 20
	}
	for _, method := range g.Methods { // a request would never match it, and pass unguarded
		if upper := strings.ToUpper(method); method != upper {
			panic("idem: methods are written in capitals: " + upper + ", not " + method)
		}
	}
	if g.Client == nil {
		panic("idem: Guard.Client is nil: set it to the client that idem.Open returns")
	}
	if _, err := g.Client.options.with(g.Options).check(); err != nil {
		panic(err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		claim, told := g.admit(r)
		switch {
		case told != nil:
			told.send(w)
		case claim != nil:
			g.run(claim, w, r, next)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (g *Guard) scope(r *http.Request) string {
	if g.Scope != nil {
		return g.Scope(r)
	}
	if credential, is := r.Header["Authorization"]; is {
		return "caller-" + digest([]byte(credential[0]))[:40]
	}
	return "anonymous"
}

// admit says what to do with a request: run it with a claim, give this answer, or neither: it is not guarded.
func (g *Guard) admit(r *http.Request) (*Claim, *answer) {
	guarded := false
	for _, method := range g.Methods {
		guarded = guarded || method == r.Method
	}
	keys := r.Header["Idempotency-Key"]
	if !guarded || len(keys) == 0 && !g.Required {
		return nil, nil
	}
	if len(keys) == 0 {
		return nil, problem("key-missing", 0, "", 0)
	}
	key, err := parseKey(keys[0])
	if len(keys) > 1 {
		err = errors.New("The key was sent twice.")
	}
	if err != nil {
		return nil, problem("key-malformed", 0, err.Error(), 0)
	}
	scope := g.scope(r)
	if scope == "" && g.Required {
		return nil, problem("scope-missing", 0, "", 0)
	} else if scope == "" {
		return nil, nil
	}
	body := ""
	// A browser sends a multipart body with another boundary at every try: it stays unread and out of the fingerprint.
	if strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "multipart/") {
		r.Body = &upload{ReadCloser: r.Body}
	} else {
		data, err := io.ReadAll(io.LimitReader(r.Body, g.MaxBody+1))
		if err != nil {
			return nil, &answer{http.StatusBadRequest, http.Header{}, []byte("the body could not be read\n")}
		}
		if int64(len(data)) > g.MaxBody {
			return nil, problem("body-too-large", 0, "", 0)
		}
		r.Body, body = io.NopCloser(bytes.NewReader(data)), digest(data)
	}
	url := r.RequestURI
	if url == "" {
		url = r.URL.RequestURI()
	}
	return g.begin(r.Context(), key, append(append([]Option{}, g.Options...), Scope(scope), Arguments([]string{r.Method, url, body})))
}

// upload is a body that only the handler reads.
type upload struct {
	io.ReadCloser
	cut atomic.Bool // it ended early
}

func (u *upload) Read(to []byte) (int, error) {
	n, err := u.ReadCloser.Read(to)
	if err != nil && err != io.EOF {
		u.cut.Store(true)
	}
	return n, err
}

func (g *Guard) begin(ctx context.Context, key string, opts []Option) (*Claim, *answer) {
	o, _ := g.Client.options.with(opts).check() // Wrap has asked whether they are right
	claim, kept, err := g.Client.beginOrLeave(ctx, key, o)
	var busy *InProgress
	var refused *Refused
	switch {
	case claim != nil:
		return claim, nil
	case err == nil:
		return nil, kept.answer()
	case errors.As(err, &busy):
		return nil, problem("in-progress", 0, "", int64(most(time.Second, busy.RetryAfter+time.Second-1)/time.Second))
	case errors.Is(err, ErrMismatch):
		return nil, problem("mismatch", 0, "", 0)
	case errors.Is(err, ErrNotExecuted):
		log.Printf("idem: a request was not executed: %v", err)
		if errors.As(err, &refused) && refused.Word == "ERR" { // the key was checked: what is left is the scope
			return nil, problem("scope-refused", 0, "", 0)
		}
		return nil, problem("not-executed", 0, "", 1)
	}
	return nil, problem("outcome-unknown", 0, "", 0)
}

// answer is what a repeat of a finished request gets.
func (s *stored) answer() *answer {
	if s.state == "failed" && (s.kind != "http" || s.result == nil) {
		if s.kind == "http" {
			return problem("failed", 0, "", 0)
		}
		return problem("settled", 0, "", 0)
	}
	if s.result == nil {
		return problem("not-replayable", 0, "", 0)
	}
	told, err := settledAnswer(s.result), error(nil)
	if s.kind == "http" {
		told, err = readAnswer(s.result)
	}
	if err != nil {
		return problem("not-replayable", 0, "", 0)
	}
	told.header.Set("Idempotent-Replayed", "true")
	return told
}

func (a *answer) send(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	if a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	w.WriteHeader(a.status)
	w.Write(a.body)
}

func (g *Guard) run(claim *Claim, w http.ResponseWriter, r *http.Request, next http.Handler) {
	before := w.Header().Clone()
	held := &heldResponse{ResponseWriter: w, header: w.Header().Clone()}
	if held.header == nil {
		held.header = http.Header{}
	}
	working, cancel := claim.context(detached{r.Context()})
	defer cancel()
	defer claim.stop()
	held.serve(next, r.WithContext(working))
	told, err := held.answer(), error(nil)
	sent, is := r.Body.(*upload)
	// What a handler says about half an upload is no answer to the whole one. A 5xx may come after an effect.
	half := is && sent.cut.Load() && told.status >= 400 && told.status < 500
	switch free := half || told.status == http.StatusTooEarly || told.status == http.StatusTooManyRequests || claim.options.loose && told.status >= 400; {
	case errors.Is(claim.report, ErrOutcomeUnknown):
		told, held.header = problem("outcome-unknown", http.StatusGatewayTimeout, "The service does not know whether the request was done.", 0), before
	case isNotExecuted(claim.report):
		told, held.header = problem("not-executed", 0, "", 1), before
		err = claim.finish("", "", nil)
	case free:
		err = claim.finish("", "", nil)
	case told.status >= 400:
		err = claim.finish("FAILED", "http", told.write(before))
	default:
		err = claim.finish("SUCCEEDED", "http", told.write(before))
	}
	if err != nil {
		log.Printf("idem: the answer to %s/%s could not be recorded: %v", claim.Scope, claim.Key, err)
		told, held.header = problem("outcome-unknown", http.StatusGatewayTimeout,
			"The request was executed and its answer could not be recorded. Do not repeat it with another key.", 0), before
	}
	for name := range w.Header() { // the service may have taken headers away
		if _, is := held.header[name]; !is {
			w.Header().Del(name)
		}
	}
	told.send(w)
}

// detached has the values of a context and not its end: a client that goes away does not stop the work in the middle, for its retry gets
// the answer.
type detached struct{ context.Context }

func (detached) Deadline() (time.Time, bool) { return time.Time{}, false }
func (detached) Done() <-chan struct{}       { return nil }
func (detached) Err() error                  { return nil }

// heldResponse keeps what a handler writes until it is recorded.
type heldResponse struct {
	http.ResponseWriter
	header, sent http.Header
	status       int
	body         bytes.Buffer
}

func (h *heldResponse) Header() http.Header { return h.header }
func (h *heldResponse) Flush()              {} // the answer is recorded before any of it is sent

func (h *heldResponse) WriteHeader(status int) {
	if status >= 200 && h.status == 0 {
		h.status, h.sent = status, h.header.Clone()
	}
}

func (h *heldResponse) Write(data []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	return h.body.Write(data)
}

// serve runs the handler. A panic is logged and answered with 500, but for http.ErrAbortHandler, which leaves the outcome unknown.
func (h *heldResponse) serve(next http.Handler, r *http.Request) {
	defer func() {
		if cause := recover(); cause == http.ErrAbortHandler {
			panic(cause)
		} else if cause != nil {
			log.Printf("idem: the handler of %s panicked: %v\n%s", r.URL.Path, cause, debug.Stack())
			h.status, h.sent = http.StatusInternalServerError, http.Header{"Content-Type": {"text/plain; charset=utf-8"}}
			h.body.Reset()
			h.body.WriteString("Internal Server Error\n")
		}
	}()
	next.ServeHTTP(h, r)
}

func (h *heldResponse) answer() *answer {
	h.WriteHeader(http.StatusOK)
	if _, typed := h.sent["Content-Type"]; !typed && h.body.Len() > 0 && h.sent.Get("Content-Encoding") == "" {
		h.sent.Set("Content-Type", http.DetectContentType(h.body.Bytes())) // as net/http does, so that a repeat gets it too
	}
	return &answer{h.status, h.sent, h.body.Bytes()}
}
