// Package idem runs a piece of work once and gives every caller the same result: a client of `idem serve`.
//
//	client, err := idem.Open("idem://127.0.0.1:6390")
//	order, err := idem.Do(ctx, client, "order-7", func(ctx context.Context) (Order, error) {
//		return placeOrder(ctx, cart)
//	}, idem.Scope("shop"), idem.Arguments(cart))
//
// The contract is in clients/README.md.
package idem

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"regexp"
	"strings"
	"time"
)

// Client talks to a server. Share one: goroutines may use it at once.
type Client struct {
	pool    *pool
	options options
}

type options struct {
	scope                      string
	loose, token, failOpen     bool
	ttl, lease, wait, deadline time.Duration
	arguments                  any
	hasArguments, mysql        bool
}

var standard = options{scope: "default", ttl: 24 * time.Hour, lease: 30 * time.Second, deadline: 30 * time.Second}

func (o options) with(changes []Option) options {
	for _, change := range changes {
		change(&o)
	}
	return o
}

// check gives the options that a call is made with: a ttl or lease of 0, which a struct has that was not filled in, is the default. Less than
// a millisecond is a mistake (TTL(24) is 24 ns): the key would be forgotten at once, and a repeat would run the work again.
func (o options) check() (options, error) {
	if o.ttl == 0 {
		o.ttl = standard.ttl
	}
	if o.lease == 0 {
		o.lease = standard.lease
	}
	for _, given := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{{"TTL", o.ttl, time.Millisecond}, {"Lease", o.lease, time.Millisecond}, {"Wait", o.wait, 0}, {"Deadline", o.deadline, 0}} {
		if given.value < given.least {
			return o, fmt.Errorf("idem: %s is a time of %s or more, not %s: write for instance 24*time.Hour", given.name, given.least, given.value)
		}
	}
	return o, nil
}

var errNoWork = errors.New("idem: work is nil: pass the function that does it")

// Option changes how a call is made.
type Option func(*options)

// Scope says who asks: a tenant, a source, a queue. The same key in two scopes is two requests.
func Scope(scope string) Option { return func(o *options) { o.scope = scope } }

// Loose lets a failed execution be tried again; without it a failure is an answer too.
func Loose() Option { return func(o *options) { o.loose = true } }

// TTL says how long the result is kept; 24 hours without it, and for 0.
func TTL(d time.Duration) Option { return func(o *options) { o.ttl = d } }

// Lease says how long a claim lives without a renewal; 30 seconds without it, and for 0.
func Lease(d time.Duration) Option { return func(o *options) { o.lease = d } }

// Wait lets a duplicate wait for the first one's result.
func Wait(d time.Duration) Option { return func(o *options) { o.wait = d } }

// Deadline says how long a command is sent again while no answer comes; 30 seconds without it.
func Deadline(d time.Duration) Option { return func(o *options) { o.deadline = d } }

// Token says that the key is a one-time token that was issued to the scope.
func Token() Option { return func(o *options) { o.token = true } }

// FailOpen runs the work without protection if the server cannot be reached; for loose calls only.
func FailOpen() Option { return func(o *options) { o.failOpen = true } }

// Arguments are what the fingerprint is made of: the same key with other arguments is ErrMismatch.
func Arguments(v any) Option { return func(o *options) { o.arguments, o.hasArguments = v, true } }

// Open makes a client; "" takes the address of IDEM_SERVER. It connects when it is first used.
func Open(url string, defaults ...Option) (*Client, error) {
	a, err := parseAddress(url)
	if err != nil {
		return nil, err
	}
	o, err := standard.with(defaults).check()
	if err != nil {
		return nil, err
	}
	return &Client{pool: &pool{address: a}, options: o}, nil
}

// Close closes the connections that are kept.
func (c *Client) Close() { c.pool.close() }

var transient = map[string]bool{"UNAVAILABLE": true, "LOST": true, "OVERLOADED": true, "CLOSED": true, "MEMORY": true, "TIMEOUT": true, "BUSY": true}

// ask sends until there is an answer. The same command again is safe: it carries a nonce or a fence.
func (c *Client) ask(ctx context.Context, args []any, deadline, wait time.Duration) ([]any, error) {
	end := time.Now().Add(deadline + wait)
	sent := false
	for pause := 20 * time.Millisecond; ; {
		answer, err := c.pool.call(args, sooner(end, replyTime+wait))
		if err == nil && args[0] != "BEGIN" && word(answer, 0) == "busy" { // to BEGIN alone it is an answer
			err = &Refused{"BUSY", "a transaction holds the record in the database"}
		}
		var b *broken
		var refused *Refused
		switch {
		case err == nil:
			return answer, nil
		case errors.As(err, &b):
			sent = sent || b.sent
		case errors.As(err, &refused) && transient[refused.Word]:
			sent = sent || refused.Word == "LOST"
		default:
			return nil, err
		}
		delay := jittered(pause)
		if time.Now().Add(delay).Before(end) && ctx.Err() == nil {
			select {
			case <-time.After(delay):
			case <-ctx.Done():
			}
		} else if sent {
			return nil, because(ErrOutcomeUnknown, "no reply in time, and it may have been stored: %v", err)
		} else if refused != nil {
			return nil, because(ErrUnavailable, "%v", err)
		} else if b != nil && errors.Is(b.cause, errStrange) { // something was reached
			return nil, because(ErrUnavailable, "%v give the address of its socket or its RESP port", err)
		} else {
			return nil, because(ErrUnavailable, "%v; is idem serve running at this address?", err)
		}
		if pause *= 2; pause > time.Second {
			pause = time.Second
		}
	}
}

func least(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

func most(a, b time.Duration) time.Duration { return -least(-a, -b) }

func milliseconds(d time.Duration) int64 {
	if ms := d.Milliseconds(); ms > 0 {
		return ms
	}
	return 1
}

// jittered is a half to one and a half of the pause. Until Go 1.20, math/rand gives the same numbers to every process.
func jittered(pause time.Duration) time.Duration {
	var bytes [2]byte
	rand.Read(bytes[:]) // without it: the shortest pause
	return pause/2 + time.Duration(float64(pause)*float64(binary.BigEndian.Uint16(bytes[:]))/65536)
}

func nonce() string {
	var bytes [8]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		panic(err)
	}
	return hex.EncodeToString(bytes[:])
}

// stored is what a finished request has left behind. No result: it was not kept.
type stored struct {
	state, kind string
	result      []byte
}

// begin gives a claim, or what is stored.
func (c *Client) begin(ctx context.Context, key string, o options) (*Claim, *stored, error) {
	mode := "STRICT"
	if o.loose {
		mode = "LOOSE"
	}
	args := []any{"BEGIN", o.scope, key, mode, "LEASE", milliseconds(o.lease), "TTL", milliseconds(o.ttl), "NONCE", nonce()}
	if o.hasArguments {
		print, err := Fingerprint(o.arguments)
		if err != nil {
			return nil, nil, err
		}
		args = append(args, "FP", print)
	}
	if o.wait > 0 {
		args = append(args, "WAIT", milliseconds(o.wait))
	}
	if o.token {
		args = append(args, "TOKEN")
	}
	asked := time.Now()
	answer, err := c.ask(ctx, args, o.deadline, o.wait)
	if err != nil {
		return nil, nil, err
	}
	if word(answer, 0) == "started" {
		return c.claim(ctx, key, o, number(answer, 1), asked)
	}
	result, _ := at(answer, 4).([]byte)
	kept, err := found(word(answer, 0), o.scope, key, time.Duration(number(answer, 1))*time.Millisecond,
		stored{word(answer, 1), word(answer, 2), result})
	return nil, kept, err
}

// claim makes sure of a claim whose BEGIN has waited, or was sent again for long: how much of its lease is left is not known.
func (c *Client) claim(ctx context.Context, key string, o options, fence int64, asked time.Time) (*Claim, *stored, error) {
	if time.Since(asked) > o.lease/3 {
		asked = time.Now()
		answer, err := c.ask(ctx, []any{"RENEW", o.scope, key, fence, milliseconds(o.lease)}, o.deadline, 0)
		if err != nil {
			return nil, nil, because(ErrOutcomeUnknown, "%s/%s was claimed and could not be renewed: %v", o.scope, key, err)
		}
		if word(answer, 0) != "ok" { // somebody decided meanwhile: ask again
			return c.begin(ctx, key, o)
		}
	}
	return newClaim(c, key, o, fence, asked), nil, nil
}

// beginOrLeave begins, but does not wait longer than the caller does. A claim that comes too late is released.
func (c *Client) beginOrLeave(ctx context.Context, key string, o options) (claim *Claim, kept *stored, err error) {
	if ctx.Done() == nil {
		return c.begin(ctx, key, o)
	}
	if ctx.Err() != nil {
		return nil, nil, because(errEnded, "%v", ctx.Err())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		claim, kept, err = c.begin(context.Background(), key, o)
	}()
	select {
	case <-done:
		return claim, kept, err
	case <-ctx.Done():
		go func() {
			<-done
			if claim != nil {
				claim.tell(claim.finish("", "", nil))
			}
		}()
		return nil, nil, because(errEnded, "%v", ctx.Err())
	}
}

var plainWord = regexp.MustCompile(`^[\w%+=:,./@-]+$`)

// shellWord is the text as a shell takes it.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// found says what a verdict other than "started" means.
func found(verdict, scope, key string, after time.Duration, kept stored) (*stored, error) {
	where := scope + "/" + key
	switch verdict {
	case "replay":
		return &kept, nil
	case "busy":
		return nil, &InProgress{after}
	case "doubt":
		return nil, because(ErrOutcomeUnknown, "nobody knows whether %s was executed: find out, then settle it (idem doubts lists it; idem settle %s %s --as …)",
			where, shellWord(scope), shellWord(key))
	case "mismatch":
		return nil, because(ErrMismatch, "%s; a retry must pass the first arguments; other work needs another key", where)
	case "duplicate":
		return nil, ErrTokenUsed
	case "unknown":
		return nil, ErrTokenUnknown
	default:
		return nil, because(ErrOutcomeUnknown, "unexpected verdict %s for %s", verdict, where)
	}
}

// read gives the stored result as a value, or the error that it is.
func (s *stored) read(value any, where string) error {
	if s.state == "failed" {
		return failure(s.result)
	}
	if s.result == nil {
		return because(ErrResultNotKept, "%s", where)
	}
	if err := json.Unmarshal(s.result, value); err != nil {
		return because(ErrDone, "the result of %s cannot be read: %v", where, err)
	}
	return nil
}

func at(answer []any, i int) any {
	if i < len(answer) {
		return answer[i]
	}
	return nil
}

func word(answer []any, i int) string {
	bytes, _ := at(answer, i).([]byte)
	return string(bytes)
}

func number(answer []any, i int) int64 {
	n, _ := at(answer, i).(int64)
	return n
}

func failure(result []byte) error {
	var told struct{ Error, Message string }
	if json.Unmarshal(result, &told) == nil && told.Error != "" {
		return &Failed{told.Error, told.Message}
	}
	return &Failed{"", string(result)}
}

// Do runs work at most once for the key; every caller gets its result, which is stored as JSON. The context that the work
// gets is cancelled when the lease is lost. An error is recorded in strict mode and releases the claim in loose mode.
//
// If work panics, or returns the error of its context that was cancelled, the claim stays: nobody knows how far it got.
func Do[T any](ctx context.Context, c *Client, key string, work func(context.Context) (T, error), opts ...Option) (T, error) {
	var value T
	if work == nil {
		return value, errNoWork
	}
	o, err := c.options.with(opts).check()
	if err != nil {
		return value, err
	}
	if o.failOpen && !o.loose {
		return value, errors.New("idem: FailOpen needs Loose: strict work never runs without its record")
	}
	claim, kept, err := c.beginOrLeave(ctx, key, o)
	if errors.Is(err, ErrUnavailable) && o.failOpen {
		log.Printf("idem: running without protection (FailOpen): %v", err)
		return work(ctx)
	}
	if err != nil {
		return value, err
	}
	if claim == nil {
		return value, kept.read(&value, o.scope+"/"+key)
	}
	working, cancel := claim.context(ctx)
	defer cancel()
	defer claim.stop()
	value, failed := work(working)
	if failed != nil {
		claim.failed(working, failed)
		return value, failed
	}
	result, err := json.Marshal(value)
	if finished := claim.finish("SUCCEEDED", "raw", result); finished != nil {
		return value, finished
	}
	if err != nil { // recorded without its result: the work is done all the same
		return value, because(ErrDone, "the result of %s/%s cannot be written: %v", o.scope, key, err)
	}
	return value, nil
}

// Issue gives a one-time token for the subject.
func (c *Client) Issue(ctx context.Context, subject string, ttl time.Duration) (string, error) {
	if ttl < time.Millisecond {
		return "", fmt.Errorf("idem: the ttl of a token is a time of 1ms or more, not %s: write for instance 5*time.Minute", ttl)
	}
	answer, err := c.ask(ctx, []any{"ISSUE", subject, "TTL", milliseconds(ttl)}, c.options.deadline, 0)
	return word(answer, 1), err
}

// Redeem uses a token up: nil, ErrTokenUsed or ErrTokenUnknown.
func (c *Client) Redeem(ctx context.Context, token, subject string) error {
	answer, err := c.ask(ctx, []any{"REDEEM", token, subject, "NONCE", nonce()}, c.options.deadline, 0)
	switch {
	case err != nil:
		return err
	case word(answer, 0) == "redeemed":
		return nil
	case word(answer, 0) == "duplicate":
		return ErrTokenUsed
	}
	return ErrTokenUnknown
}
