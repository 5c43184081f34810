package idem

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// open gives a client of the server that tests/system/test_client_go.py has started, in a scope of its own.
func open(t *testing.T, opts ...Option) *Client {
	client, err := Open(os.Getenv("IDEM_SERVER"), append([]Option{Scope(t.Name() + nonce())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func one(context.Context) (int, error) { return 1, nil }

func TestACallerWhoLeavesGivesALateClaimBack(t *testing.T) {
	client, ctx := open(t), context.Background()
	first, _, err := client.begin(ctx, "k", client.options)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if _, err = Do(short, client, "k", one, Wait(time.Minute)); !errors.Is(err, ErrNotExecuted) {
		t.Fatal(err)
	}
	if err = first.finish("", "", nil); err != nil { // now the call that was left gets the claim
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		value, err := Do(ctx, client, "k", func(context.Context) (int, error) { return 2, nil })
		if err == nil && value == 2 {
			return
		}
		if !errors.Is(err, ErrInProgress) || time.Now().After(end) {
			t.Fatal(value, err)
		}
	}
}

func TestProcessesDoNotRetryInStep(t *testing.T) {
	var drawn [2][8]time.Duration
	for process := range drawn {
		mathrand.Seed(1) // as Go 1.19 starts every process
		for i := range drawn[process] {
			drawn[process][i] = jittered(time.Hour)
			if drawn[process][i] < time.Hour/2 || drawn[process][i] > time.Hour*3/2 {
				t.Fatal(drawn)
			}
		}
	}
	if drawn[0] == drawn[1] {
		t.Fatal("two processes pause alike")
	}
}

func TestAPanicKeepsTheClaim(t *testing.T) {
	client, ctx := open(t), context.Background()
	func() {
		defer func() { _ = recover() }()
		Do(ctx, client, "k", func(context.Context) (int, error) { panic("in the middle") })
	}()
	if _, err := Do(ctx, client, "k", one); !errors.Is(err, ErrInProgress) {
		t.Fatal(err)
	}
}

func TestAResultThatCannotBeWrittenIsDone(t *testing.T) {
	client, ctx := open(t), context.Background()
	if _, err := Do(ctx, client, "k", func(context.Context) (chan int, error) { return make(chan int), nil }); !errors.Is(err, ErrDone) {
		t.Fatal(err)
	}
	if _, err := Do(ctx, client, "k", one); !errors.Is(err, ErrResultNotKept) {
		t.Fatal(err)
	}
}

func post(handler http.Handler, kind, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/x", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set("Content-Type", kind)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

func guarded(t *testing.T, handler http.HandlerFunc) http.Handler {
	scope := t.Name() + nonce()
	return Guard{Client: open(t), Scope: func(*http.Request) string { return scope }}.Wrap(handler)
}

func TestAnotherBoundaryOfAFormIsTheSameRequest(t *testing.T) {
	handler := guarded(t, func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(r.FormValue("a"))) })
	for _, boundary := range []string{"one", "two"} {
		form := "--" + boundary + "\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--" + boundary + "--\r\n"
		w := post(handler, "multipart/form-data; boundary="+boundary, form)
		if w.Code != 200 || w.Body.String() != "1" || (w.Header().Get("Idempotent-Replayed") == "true") != (boundary == "two") {
			t.Fatal(boundary, w)
		}
	}
}

func TestAnAnswerWithoutABodyIsReplayed(t *testing.T) {
	handler := guarded(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for _, replayed := range []string{"", "true"} {
		if w := post(handler, "text/plain", "x"); w.Code != 204 || w.Header().Get("Idempotent-Replayed") != replayed || w.Header().Get("Content-Length") != "" {
			t.Fatal(w)
		}
	}
}

func TestHeadersOfOuterHandlersAreNotRecorded(t *testing.T) {
	inner := guarded(t, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Mine", "1") })
	for _, id := range []string{"a", "b"} {
		outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request-Id", id)
			inner.ServeHTTP(w, r)
		})
		if w := post(outer, "text/plain", "x"); w.Header().Get("X-Request-Id") != id || w.Header().Get("X-Mine") != "1" {
			t.Fatal(id, w.Header())
		}
	}
}

func TestAnAbortedHandlerLeavesTheOutcomeUnknown(t *testing.T) {
	handler := guarded(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	func() {
		defer func() {
			if recover() != http.ErrAbortHandler {
				t.Error("net/http was not told")
			}
		}()
		post(handler, "text/plain", "x")
	}()
	if w := post(handler, "text/plain", "x"); w.Code != http.StatusConflict {
		t.Fatal(w)
	}
}

func TestWorkThatWasCancelledKeepsTheClaim(t *testing.T) {
	client, ctx := open(t), context.Background()
	for _, opts := range [][]Option{nil, {Loose()}} {
		short, cancel := context.WithCancel(ctx)
		_, err := Do(short, client, "k", func(ctx context.Context) (int, error) {
			cancel()
			<-ctx.Done()
			return 0, fmt.Errorf("in the middle: %w", ctx.Err())
		}, opts...)
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if _, err := Do(ctx, client, "k", one, opts...); !errors.Is(err, ErrInProgress) {
			t.Fatal(err)
		}
		client = open(t)
	}
}

func TestWorkThatLostItsLeaseKeepsTheClaim(t *testing.T) {
	client, ctx := open(t), context.Background()
	_, err := Do(ctx, client, "k", func(ctx context.Context) (int, error) {
		claim := Current(ctx)
		claim.lock.Lock()
		claim.lose()
		claim.lock.Unlock()
		<-ctx.Done()
		return 0, errors.New("a driver's own error for a query that was cancelled")
	})
	if err == nil || errors.Is(err, ErrDone) {
		t.Fatal(err)
	}
	if _, err := Do(ctx, client, "k", one); !errors.Is(err, ErrInProgress) {
		t.Fatal(err)
	}
}

func TestAClientThatGoesAwayDoesNotStopTheHandler(t *testing.T) {
	handler := guarded(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			http.Error(w, "stopped in the middle", 500)
		case <-time.After(100 * time.Millisecond):
			w.Write([]byte("fine"))
		}
	})
	r := httptest.NewRequest("POST", "/x", strings.NewReader("x"))
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set("Content-Type", "text/plain")
	gone, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(gone))
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if w := post(handler, "text/plain", "x"); w.Code == 200 && w.Body.String() == "fine" {
			return
		} else if w.Code == 500 || time.Now().After(end) {
			t.Fatal(w)
		}
	}
}

// Before anything is sent: nil is no work, and a result that is kept for no time does not protect.
func TestMistakesThatWouldRemoveTheProtectionAreRefused(t *testing.T) {
	client, ctx := open(t), context.Background()
	refused := func(err error, text string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Fatal(text, err)
		}
	}
	_, err := Do[int](ctx, client, "k", nil)
	refused(err, "work is nil")
	_, err = DoDB[int](ctx, nil, "k", nil, Arguments(1))
	refused(err, "work is nil")
	_, err = DoTx[int](ctx, nil, "k", nil, Arguments(1))
	refused(err, "work is nil")
	for text, wrong := range map[string]Option{"TTL is a time of 1ms or more, not 24ns": TTL(24), "TTL is a time of 1ms or more, not -5s": TTL(-5 * time.Second),
		"Lease is a time of 1ms or more, not -1s": Lease(-time.Second), "Lease is a time of 1ms or more, not 30ns": Lease(30),
		"Wait is a time of 0s or more, not -1s": Wait(-time.Second), "Deadline is a time of 0s or more, not -1s": Deadline(-time.Second)} {
		_, err = Do(ctx, client, "k", one, wrong)
		refused(err, text)
		_, err = DoTx(ctx, nil, "k", one, wrong, Arguments(1))
		refused(err, text)
		_, err = Open("", wrong)
		refused(err, text)
		refused(panicOf(func() { Guard{Client: client, Options: []Option{wrong}}.Wrap(nil) }), text)
	}
	refused(panicOf(func() { Guard{}.Wrap(nil) }), "Guard.Client is nil")
	refused(panicOf(func() { Guard{Client: client, Methods: []string{"post"}}.Wrap(nil) }), "in capitals: POST, not post")
	_, err = client.Issue(ctx, "ann", 0)
	refused(err, "the ttl of a token is a time of 1ms or more, not 0s")
	for i := 1; i < 3; i++ { // 0 is the default
		value, err := Do(ctx, client, "k", func(context.Context) (int, error) { return i, nil }, TTL(0), Lease(0))
		if err != nil || value != 1 {
			t.Fatal(value, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func panicOf(call func()) (err error) {
	defer func() {
		if told := recover(); told != nil {
			err = fmt.Errorf("%v", told)
		}
	}()
	call()
	return nil
}

func TestTheErrorsSayWhatToDo(t *testing.T) {
	client, ctx := open(t), context.Background()
	Do(ctx, client, "odd", func(context.Context) (chan int, error) { return make(chan int), nil })
	if _, err := Do(ctx, client, "odd", one); err == nil || !strings.Contains(err.Error(), "its result was not kept: it was too large, or could not be written") {
		t.Fatal(err)
	}
	Do(ctx, client, "it's", func(context.Context) (int, error) { return 0, ErrOutcomeUnknown }, Lease(time.Millisecond))
	time.Sleep(50 * time.Millisecond)
	text := "find out, then settle it (idem doubts lists it; idem settle " + client.options.scope + " 'it'\\''s' --as …)"
	if _, err := Do(ctx, client, "it's", one); !errors.Is(err, ErrOutcomeUnknown) || !strings.Contains(err.Error(), text) {
		t.Fatal(err)
	}
}

func TestAddressesAreChecked(t *testing.T) {
	for _, wrong := range []string{"http://x", "idem://", "idem://h:99999", "unix:/x?auth-file=/y", "idem://x?ca=/y", "idems://x?auth=1", "idems://x?ca=/no/such/file", "idems://x?cert=/no/such/file", "idems://x?ca=/etc/hostname"} {
		if _, err := Open(wrong); err == nil {
			t.Fatal(wrong)
		}
	}
	for _, good := range []string{"idem://my_host", "idem://[::1]:6390", "idem://name:secret@host:1/", "idems://host", "[::1]:6390", "idem+unix:7", "name:s/e#c@ret@host:1"} {
		if _, err := Open(good); err != nil {
			t.Fatal(good, err)
		}
	}
}
