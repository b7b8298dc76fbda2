package asynqjobs

import (
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// putOffError tells Asynq that a task comes back. Asynq keeps its text with the task.
type putOffError struct {
	back *jobs.ComeBackError
	mark string // names this putting off and no other
	why  error  // if not that it is another's turn
}

func (p *putOffError) Error() string {
	if p.why != nil {
		return "dibs: the task's key could not be asked for (" + p.mark + "): " + p.why.Error()
	}
	return "dibs: it is not this task's turn (" + p.mark + ")"
}

func (p *putOffError) Unwrap() error { return p.back }

// storeAway is about how long a task stays away whose key could not be asked for.
const storeAway = time.Second

// away reports whether a store could not be asked, which is no failure of the task.
func away(err error) bool {
	return errors.Is(err, dibs.ErrStore) || errors.Is(err, dibs.ErrBusy) || errors.Is(err, dibs.ErrFull) || errors.Is(err, dibs.ErrClosed)
}

// failure tells Asynq that a task has failed.
type failure struct {
	error
	delay time.Duration // until it is tried again
	known bool          // the delay
	last  bool          // it is archived
}

func (f *failure) Unwrap() error        { return f.error }
func (f *failure) Is(target error) bool { return f.last && target == asynq.SkipRetry }

// own returns the handler's own error.
func own(err error) error {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.error
	}
	return err
}
