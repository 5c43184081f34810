package idem

import (
	"errors"
	"fmt"
	"time"
)

// The four classes of errors. Ask with errors.Is(err, idem.ErrNotExecuted) and so on.
var (
	// ErrDone: the request was executed before. Do not send it again.
	ErrDone = errors.New("done before")
	// ErrNotExecuted: this attempt was not executed. An earlier one with the same key may have been: keep the key.
	// Return it from your work to say: this has certainly not happened.
	ErrNotExecuted = errors.New("not executed")
	// ErrInProgress: another caller is executing the request. See InProgress for when to ask again.
	ErrInProgress = errors.New("in progress")
	// ErrOutcomeUnknown: the request may have been executed. Return it from your work to say: I do not know.
	ErrOutcomeUnknown = errors.New("outcome unknown")
)

// Errors with a class: errors.Is(ErrMismatch, ErrNotExecuted) holds.
var (
	ErrResultNotKept = class(ErrDone, "done, but its result was not kept: it was too large, or could not be written")
	ErrTokenUsed     = class(ErrDone, "the token was used before")
	ErrMismatch      = class(ErrNotExecuted, "the key was used before with other arguments")
	ErrTokenUnknown  = class(ErrNotExecuted, "there is no such token for this subject")
	ErrUnavailable   = class(ErrNotExecuted, "the server or its store cannot be reached")
	errEnded         = class(ErrNotExecuted, "the context was over before it had begun")
	ErrLeaseLost     = class(ErrOutcomeUnknown, "the claim had ended before the result was recorded")
)

type classed struct {
	class error
	text  string
}

func class(of error, text string) error { return &classed{of, text} }
func (e *classed) Error() string        { return e.text }
func (e *classed) Is(target error) bool { return target == e.class }

// Failed is the stored failure of the first execution, which strict mode keeps as the answer.
type Failed struct{ Type, Message string }

func (e *Failed) Error() string {
	if e.Type == "" {
		return e.Message
	}
	return e.Type + ": " + e.Message
}

// Is makes it an ErrDone.
func (e *Failed) Is(target error) bool { return target == ErrDone }

// InProgress says when asking again makes sense.
type InProgress struct{ RetryAfter time.Duration }

func (e *InProgress) Error() string { return "in progress" }

// Is makes it an ErrInProgress.
func (e *InProgress) Is(target error) bool { return target == ErrInProgress }

// Refused is the server's refusal of a command: a wrong argument, or missing rights.
type Refused struct{ Word, Text string }

func (e *Refused) Error() string {
	if e.Word == "ERR" {
		return e.Text
	}
	return e.Word + " " + e.Text
}

// Is makes it an ErrNotExecuted.
func (e *Refused) Is(target error) bool { return target == ErrNotExecuted }

// isNotExecuted: the work says that it has certainly not happened. What another call inside of it was told is about that call only.
func isNotExecuted(err error) bool {
	var refused *Refused
	for _, told := range []error{ErrMismatch, ErrTokenUnknown, ErrUnavailable, errEnded} {
		if errors.Is(err, told) {
			return false
		}
	}
	return errors.Is(err, ErrNotExecuted) && !errors.As(err, &refused)
}

func because(err error, format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{err}, args...)...)
}
