// The conformance driver of the Go client: see clients/conformance/README.md.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/lib/pq"

	"idem"
)

type step struct {
	SQL         string          `json:"sql"`
	Append      string          `json:"append"`
	SleepMs     int             `json:"sleep_ms"`
	AwaitLossMs int             `json:"await_loss_ms"`
	File        string          `json:"file"`
	Die         bool            `json:"die"`
	Return      json.RawMessage `json:"return"`
	ReturnText  int             `json:"return_text"`
	Raise       []string        `json:"raise"`
	Redeem      string          `json:"redeem"`
	NotExecuted bool            `json:"not_executed"`
	Unknown     bool            `json:"unknown"`
}

type command struct {
	ID      int    `json:"id"`
	Op      string `json:"op"`
	Scope   string `json:"scope"`
	Key     string `json:"key"`
	Subject string `json:"subject"`
	Token   any    `json:"token"`
	Options struct {
		Mode       string `json:"mode"`
		LeaseMs    int    `json:"lease_ms"`
		TTLMs      int    `json:"ttl_ms"`
		WaitMs     int    `json:"wait_ms"`
		DeadlineMs int    `json:"deadline_ms"`
		FailOpen   bool   `json:"fail_open"`
	} `json:"options"`
	Arguments json.RawMessage `json:"arguments"`
	Work      []step          `json:"work"`
	Database  string          `json:"database"`
	End       string          `json:"end"`
}

type raised struct{ name, message string }

func (e *raised) Error() string    { return e.message }
func (e *raised) TypeName() string { return e.name }

func addLine(path string, text any) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintln(f, text)
}

func work(ctx context.Context, steps []step, tx *sql.Tx) (json.RawMessage, error) {
	for _, s := range steps {
		switch {
		case s.SQL != "":
			if _, err := tx.ExecContext(ctx, s.SQL); err != nil {
				return nil, err
			}
		case s.Append != "":
			var fence int64
			if claim := idem.Current(ctx); claim != nil {
				fence = claim.Fence
			}
			addLine(s.Append, fence)
		case s.SleepMs > 0:
			time.Sleep(time.Duration(s.SleepMs) * time.Millisecond)
		case s.AwaitLossMs > 0:
			select {
			case <-ctx.Done():
				addLine(s.File, "lost")
			case <-time.After(time.Duration(s.AwaitLossMs) * time.Millisecond):
				addLine(s.File, "kept")
			}
		case s.Die:
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			time.Sleep(time.Minute)
		case s.ReturnText > 0:
			return json.Marshal(strings.Repeat("x", s.ReturnText))
		case s.Raise != nil:
			return nil, &raised{s.Raise[0], s.Raise[1]}
		case s.Redeem != "":
			if err := client.Redeem(ctx, s.Redeem, idem.Current(ctx).Scope); err != nil {
				return nil, err
			}
		case s.NotExecuted:
			return nil, idem.ErrNotExecuted
		case s.Unknown:
			return nil, idem.ErrOutcomeUnknown
		default:
			return s.Return, nil
		}
	}
	return nil, nil
}

var classes = []struct {
	err  error
	name string
}{{idem.ErrDone, "done"}, {idem.ErrNotExecuted, "not_executed"}, {idem.ErrInProgress, "in_progress"}, {idem.ErrOutcomeUnknown, "unknown"}}

var names = []struct {
	err  error
	name string
}{{idem.ErrResultNotKept, "ResultNotKept"}, {idem.ErrTokenUsed, "TokenUsed"}, {idem.ErrMismatch, "Mismatch"},
	{idem.ErrTokenUnknown, "TokenUnknown"}, {idem.ErrUnavailable, "Unavailable"}, {idem.ErrLeaseLost, "LeaseLost"},
	{idem.ErrOutcomeUnknown, "OutcomeUnknown"}, {idem.ErrInProgress, "InProgress"}, {idem.ErrNotExecuted, "NotExecuted"}}

func told(err error) map[string]any {
	answer := map[string]any{"class": "error", "message": err.Error()}
	for _, c := range classes {
		if errors.Is(err, c.err) {
			answer["class"] = c.name
			break
		}
	}
	var failed *idem.Failed
	var own *raised
	var postgres *pq.Error
	var maria *mysql.MySQLError
	answer["deadlock"] = errors.As(err, &postgres) && strings.HasPrefix(string(postgres.Code), "40") ||
		errors.As(err, &maria) && (maria.Number == 1213 || maria.Number == 1205)
	switch {
	case errors.As(err, &failed):
		answer["error"], answer["type"], answer["message"] = "Failed", failed.Type, failed.Message
	case errors.As(err, &own):
		answer["error"], answer["type"] = own.name, own.name
	default:
		for _, n := range names {
			if errors.Is(err, n.err) {
				answer["error"] = n.name
				break
			}
		}
	}
	return answer
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func optionsOf(c *command) []idem.Option {
	o := c.Options
	opts := []idem.Option{idem.Scope(c.Scope)}
	if o.Mode == "loose" {
		opts = append(opts, idem.Loose())
	}
	if o.LeaseMs > 0 {
		opts = append(opts, idem.Lease(ms(o.LeaseMs)))
	}
	if o.TTLMs > 0 {
		opts = append(opts, idem.TTL(ms(o.TTLMs)))
	}
	if o.WaitMs > 0 {
		opts = append(opts, idem.Wait(ms(o.WaitMs)))
	}
	if o.DeadlineMs > 0 {
		opts = append(opts, idem.Deadline(ms(o.DeadlineMs)))
	}
	if o.FailOpen {
		opts = append(opts, idem.FailOpen())
	}
	if c.Token == true {
		opts = append(opts, idem.Token())
	}
	if c.Arguments != nil {
		opts = append(opts, idem.Arguments(c.Arguments))
	}
	return opts
}

// answer is that to a command that runs work; call gets the work.
func answer(c *command, call func(func(context.Context, *sql.Tx) (json.RawMessage, error)) (json.RawMessage, error)) map[string]any {
	ran := false
	value, err := call(func(ctx context.Context, tx *sql.Tx) (json.RawMessage, error) {
		ran = true
		return work(ctx, c.Work, tx)
	})
	answer := map[string]any{"class": "done", "value": value}
	if err != nil {
		answer = told(err)
	}
	answer["ran"] = ran
	return answer
}

var databases sync.Map

func open(where string) *sql.DB {
	if db, is := databases.Load(where); is {
		return db.(*sql.DB)
	}
	name, address := "postgres", where+"?sslmode=disable"
	if u, err := url.Parse(where); err == nil && u.Scheme == "mysql" {
		name, address = "mysql", fmt.Sprintf("%s@tcp(%s)%s", u.User, u.Host, u.Path)
	}
	db, err := sql.Open(name, address)
	if err != nil {
		panic(err)
	}
	kept, _ := databases.LoadOrStore(where, db)
	return kept.(*sql.DB)
}

// transaction: End says how the caller's own ends; without it the transaction is the helper's.
func transaction(c *command) map[string]any {
	ctx, db, opts := context.Background(), open(c.Database), optionsOf(c)
	if strings.HasPrefix(c.Database, "mysql") {
		opts = append(opts, idem.MySQL())
	}
	if c.End == "" {
		return answer(c, func(run func(context.Context, *sql.Tx) (json.RawMessage, error)) (json.RawMessage, error) {
			return idem.DoDB(ctx, db, c.Key, run, opts...)
		})
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		panic(err)
	}
	told := answer(c, func(run func(context.Context, *sql.Tx) (json.RawMessage, error)) (json.RawMessage, error) {
		return idem.DoTx(ctx, tx, c.Key, func(ctx context.Context) (json.RawMessage, error) { return run(ctx, tx) }, opts...)
	})
	if end := map[string]func() error{"commit": tx.Commit, "rollback": tx.Rollback}[c.End]; end() != nil {
		panic("the transaction could not be ended")
	}
	return told
}

var client *idem.Client

func perform(c *command) map[string]any {
	var value any
	var err error
	switch c.Op {
	case "once":
		return answer(c, func(run func(context.Context, *sql.Tx) (json.RawMessage, error)) (json.RawMessage, error) {
			return idem.Do(context.Background(), client, c.Key, func(ctx context.Context) (json.RawMessage, error) { return run(ctx, nil) }, optionsOf(c)...)
		})
	case "transaction":
		return transaction(c)
	case "issue":
		value, err = client.Issue(context.Background(), c.Subject, 5*time.Minute)
	case "redeem":
		value, err = "redeemed", client.Redeem(context.Background(), c.Token.(string), c.Subject)
	default:
		value, err = idem.Fingerprint(c.Arguments)
	}
	if err != nil {
		return told(err)
	}
	return map[string]any{"class": "done", "value": value}
}

func main() {
	var err error
	if client, err = idem.Open(os.Args[1]); err != nil {
		panic(err)
	}
	var output sync.Mutex
	var working sync.WaitGroup
	input := bufio.NewReader(os.Stdin)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			break
		}
		c := &command{}
		if err := json.Unmarshal(line, c); err != nil {
			panic(err)
		}
		working.Add(1)
		go func() {
			defer working.Done()
			answer := perform(c)
			answer["id"] = c.ID
			data, _ := json.Marshal(answer)
			output.Lock()
			defer output.Unlock()
			fmt.Printf("%s\n", data)
		}()
	}
	working.Wait()
}
