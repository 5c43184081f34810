package idem

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"time"
)

const busyAgain = 100 * time.Millisecond

// MySQL says that the database of DoDB and DoTx is MariaDB or MySQL; without it, it is PostgreSQL.
func MySQL() Option { return func(o *options) { o.mysql = true } }

// DoDB runs work at most once, with its record in one transaction of your own database: both commit or neither. It needs no server, only
// the functions that `idem store init URL` installs (docs/sql/README.md). The work gets the transaction; it neither commits nor rolls back.
//
// Arguments are needed. Errors of the database go through: after a deadlock (SQLSTATE 40001, 40P01; MariaDB 1213, 1205, 1020) call it again.
func DoDB[T any](ctx context.Context, db *sql.DB, key string, work func(context.Context, *sql.Tx) (T, error), opts ...Option) (T, error) {
	var value T
	if work == nil {
		return value, errNoWork
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return value, err
	}
	defer tx.Rollback() // after a commit it does nothing
	value, keep, err := doTx(ctx, tx, key, func(ctx context.Context) (T, error) { return work(ctx, tx) }, opts)
	if keep {
		if failed := tx.Commit(); failed != nil {
			return value, lostCommit(failed, key)
		}
	}
	return value, err
}

// DoTx is DoDB as a part of your own transaction (READ COMMITTED). Commit it; after an error of the work too, if the failure shall be kept:
// what the work changed is undone to a savepoint then.
func DoTx[T any](ctx context.Context, tx *sql.Tx, key string, work func(context.Context) (T, error), opts ...Option) (T, error) {
	value, _, err := doTx(ctx, tx, key, work, opts)
	return value, err
}

// lostCommit: an error that the database did not say itself leaves the commit done or not done.
func lostCommit(err error, key string) error {
	if state, code := sqlError(err); (state == "" && code == 0 || strings.HasPrefix(state, "08")) && !errors.Is(err, sql.ErrTxDone) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return because(ErrOutcomeUnknown, "the reply to commit was lost, ask idem.get for %s: %v", key, err)
	}
	return err
}

// doTx also says whether the transaction is to be committed.
func doTx[T any](ctx context.Context, tx *sql.Tx, key string, work func(context.Context) (T, error), opts []Option) (value T, keep bool, err error) {
	if work == nil {
		return value, false, errNoWork
	}
	o, err := standard.with(opts).check()
	if err != nil {
		return value, false, err
	}
	if !o.hasArguments {
		return value, false, errors.New("idem: give Arguments: without them a key that is used for another request is not noticed")
	}
	r := &txRecord{ctx: ctx, tx: tx, o: o, key: key}
	kept, err := r.begin()
	if err != nil {
		return value, false, err
	}
	if kept != nil {
		// Committed too: with a synchronous standby an answer counts when the transaction that read it is committed.
		return value, true, kept.read(&value, o.scope+"/"+key)
	}
	if err = r.exec("savepoint idem_work"); err != nil {
		return value, false, err
	}
	claim := &Claim{Scope: o.scope, Key: key, Fence: r.fence, options: o}
	value, err = work(context.WithValue(ctx, claimKey{}, claim))
	if err != nil {
		return value, !isUndone(err) && r.conclude(err), err
	}
	result, err := json.Marshal(value)
	if err != nil { // it is not committed: nothing has happened
		return value, false, because(ErrNotExecuted, "the result of %s/%s cannot be written: %v", o.scope, key, err)
	}
	verdict, err := r.finish("succeeded", result)
	if err == nil && verdict != "ok" {
		err = because(ErrLeaseLost, "somebody else decided about %s/%s meanwhile (%s)", o.scope, key, verdict)
	}
	return value, err == nil, err
}

// txRecord is the record of one request in a transaction.
type txRecord struct {
	ctx   context.Context
	tx    *sql.Tx
	o     options
	key   string
	fence int64
}

func (r *txRecord) exec(query string, args ...any) error {
	_, err := r.tx.ExecContext(r.ctx, query, args...)
	return err
}

func (r *txRecord) begin() (*stored, error) {
	hash, err := Fingerprint(r.o.arguments)
	if err != nil {
		return nil, err
	}
	print, _ := hex.DecodeString(hash)
	mode := "strict"
	if r.o.loose {
		mode = "loose"
	}
	var verdict string
	var fence sql.NullInt64
	var kind, state sql.NullString
	var result []byte
	args := []any{r.o.scope, r.key, print, mode, milliseconds(r.o.lease), milliseconds(r.o.ttl)}
	if r.o.mysql {
		if err = r.exec("call idem_begin(?, ?, ?, ?, ?, ?, @idem_v, @idem_f, @idem_k, @idem_r)", args...); err == nil {
			err = r.tx.QueryRowContext(r.ctx, "select @idem_v, @idem_f, @idem_k, @idem_r").Scan(&verdict, &fence, &kind, &result)
		}
		if err == nil && verdict == "replay" {
			if err = r.exec("call idem_get(?, ?, @idem_v, @idem_s, @idem_f, @idem_k, @idem_g)", r.o.scope, r.key); err == nil {
				err = r.tx.QueryRowContext(r.ctx, "select @idem_s").Scan(&state)
			}
		}
	} else {
		err = r.tx.QueryRowContext(r.ctx, "select verdict, fence, kind, result, state from idem.begin($1, $2, $3, $4, $5, $6, $7)",
			append(args, r.o.wait.Milliseconds())...).Scan(&verdict, &fence, &kind, &result, &state)
	}
	if err != nil || verdict == "started" {
		r.fence = fence.Int64
		return nil, err
	}
	return found(verdict, r.o.scope, r.key, busyAgain, stored{state.String, kind.String, result})
}

func (r *txRecord) finish(state string, result []byte) (verdict string, err error) {
	args := []any{r.o.scope, r.key, r.fence, state, result, milliseconds(r.o.ttl)}
	if !r.o.mysql {
		return verdict, r.tx.QueryRowContext(r.ctx, "select idem.try_finish($1, $2, $3, $4, $5, $6)", args...).Scan(&verdict)
	}
	if err = r.exec("call idem_try_finish(?, ?, ?, ?, ?, ?, 'raw', @idem_v)", args...); err == nil {
		err = r.tx.QueryRowContext(r.ctx, "select @idem_v").Scan(&verdict)
	}
	return verdict, err
}

// conclude undoes what the work changed, and records its failure, keeps the claim or gives the key back; true: commit that.
func (r *txRecord) conclude(failed error) bool {
	unknown := errors.Is(failed, ErrOutcomeUnknown)
	keep := unknown || !r.o.loose && !errors.Is(failed, ErrNotExecuted)
	err := r.exec("rollback to savepoint idem_work")
	if err == nil && !keep && r.o.mysql {
		err = r.exec("call idem_release(?, ?, ?, @idem_v)", r.o.scope, r.key, r.fence)
	} else if err == nil && !keep {
		err = r.exec("select idem.release($1, $2, $3)", r.o.scope, r.key, r.fence)
	} else if err == nil && !unknown {
		_, err = r.finish("failed", written(failed))
	}
	return keep && err == nil
}

// isUndone: a deadlock, a serialization failure or a lost connection has undone the claim as well.
func isUndone(err error) bool {
	state, code := sqlError(err)
	return strings.HasPrefix(state, "40") || strings.HasPrefix(state, "08") || code == 1205 || code == 1213 || code == 1020
}

// sqlError finds what the drivers of PostgreSQL (a method SQLState) and MySQL (a field Number) say, without importing them.
func sqlError(err error) (state string, code uint64) {
	for ; err != nil; err = errors.Unwrap(err) {
		if told, is := err.(interface{ SQLState() string }); is {
			return told.SQLState(), 0
		}
		if v := reflect.Indirect(reflect.ValueOf(err)); v.Kind() == reflect.Struct {
			if number := v.FieldByName("Number"); number.IsValid() && number.CanUint() {
				return "", number.Uint()
			}
		}
	}
	return "", 0
}
