package idem

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"reflect"
	"strings"
	"sync"
	"time"
)

// Claim is work that is yours to do.
type Claim struct {
	Scope, Key string
	// Fence grows with every execution of a key: hand it to what the work changes.
	Fence   int64
	client  *Client
	options options
	ends    time.Time
	lock    sync.Mutex
	timer   *time.Timer // of the next renewal
	over    bool        // stopped, or lost
	lost    bool
	cancel  context.CancelFunc
	report  error // what a handler said instead of an answer
}

type claimKey struct{}

// Current is the claim of the work that runs with this context, or nil.
func Current(ctx context.Context) *Claim {
	claim, _ := ctx.Value(claimKey{}).(*Claim)
	return claim
}

// newClaim makes a claim that is renewed until it is stopped.
func newClaim(c *Client, key string, o options, fence int64, asked time.Time) *Claim {
	claim := &Claim{Scope: o.scope, Key: key, Fence: fence, client: c, options: o, ends: asked.Add(o.lease)}
	claim.lock.Lock()
	defer claim.lock.Unlock()
	claim.timer = time.AfterFunc(o.lease/3, claim.renew)
	return claim
}

// renew is called at a third of the lease, and again at its end, by our own clock: a server that says nothing must not keep the news from
// the work.
func (claim *Claim) renew() {
	asked := time.Now()
	claim.lock.Lock()
	left := claim.ends.Sub(asked)
	if !claim.over && left <= 0 {
		claim.lose()
	}
	if claim.over {
		claim.lock.Unlock()
		return
	}
	claim.timer.Reset(left)
	claim.lock.Unlock()
	answer, err := claim.client.ask(context.Background(), []any{"RENEW", claim.Scope, claim.Key, claim.Fence, milliseconds(claim.options.lease)}, left, 0)
	claim.lock.Lock()
	defer claim.lock.Unlock()
	if claim.over || err != nil {
		return // the timer tells the work
	}
	if word(answer, 0) != "ok" {
		claim.lose()
		return
	}
	claim.ends = asked.Add(claim.options.lease)
	claim.timer.Reset(claim.options.lease / 3)
}

// lose tells the work. The lock is held.
func (claim *Claim) lose() {
	claim.over, claim.lost = true, true
	claim.timer.Stop()
	if claim.cancel != nil {
		claim.cancel()
	}
}

// stop ends the renewals: the outcome is recorded next, or stays unknown.
func (claim *Claim) stop() {
	claim.lock.Lock()
	defer claim.lock.Unlock()
	claim.over = true
	claim.timer.Stop()
}

func (claim *Claim) isLost() bool {
	claim.lock.Lock()
	defer claim.lock.Unlock()
	return claim.lost
}

// context is that of the work: it knows its claim, and is cancelled when the lease is lost.
func (claim *Claim) context(ctx context.Context) (context.Context, context.CancelFunc) {
	claim.lock.Lock()
	defer claim.lock.Unlock()
	working, cancel := context.WithCancel(context.WithValue(ctx, claimKey{}, claim))
	claim.cancel = cancel
	if claim.over { // lost before the work began
		cancel()
	}
	return working, cancel
}

// finish records the outcome; "" releases the claim. A nil result is recorded as one that was not kept.
func (claim *Claim) finish(outcome, kind string, result []byte) error {
	claim.stop()
	args := []any{"RELEASE", claim.Scope, claim.Key, claim.Fence}
	if outcome != "" {
		args = append([]any{"FINISH"}, append(args[1:], outcome, result, "KIND", kind)...)
		if result == nil {
			args = append(args, "NOREPLAY")
		}
	}
	// The caller's context may be over; the outcome is recorded all the same.
	answer, err := claim.client.ask(context.Background(), args, claim.options.deadline, 0)
	var refused *Refused
	if errors.As(err, &refused) && outcome != "" && result != nil {
		return claim.finish(outcome, kind, nil)
	}
	if errors.Is(err, ErrNotExecuted) && outcome != "" {
		return because(ErrOutcomeUnknown, "the work was done, and its result could not be recorded: %v", err)
	}
	if err != nil {
		return err
	}
	if outcome != "" && word(answer, 0) != "ok" {
		return because(ErrLeaseLost, "somebody else decided about %s/%s meanwhile (%s)", claim.Scope, claim.Key, word(answer, 0))
	}
	return nil
}

// typeName is how a failure's type is stored: of an error that was wrapped, the innermost.
func typeName(err error) string {
	if named, is := err.(interface{ TypeName() string }); is {
		return named.TypeName()
	}
	return strings.TrimPrefix(reflect.TypeOf(err).String(), "*")
}

// written is how a failure is stored.
func written(failed error) []byte {
	told, _ := json.Marshal(map[string]string{"error": typeName(failed), "message": failed.Error()})
	return told
}

// failed records the error of the work, releases the claim or leaves it. What goes wrong here is logged: the caller gets the work's error.
// Work that stopped because its context was over does not know how far it got, whatever its error is after the lease was lost.
func (claim *Claim) failed(ctx context.Context, err error) {
	switch {
	case claim.isLost(), errors.Is(err, ErrOutcomeUnknown), ctx.Err() != nil && errors.Is(err, ctx.Err()):
		claim.stop()
	case claim.options.loose, isNotExecuted(err):
		claim.tell(claim.finish("", "", nil))
	default:
		claim.tell(claim.finish("FAILED", "raw", written(err)))
	}
}

func (claim *Claim) tell(err error) {
	if err != nil {
		log.Printf("idem: the outcome of %s/%s could not be recorded: %v", claim.Scope, claim.Key, err)
	}
}
