package asynqjobs

import (
	"errors"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// putOffError tells Asynq that a task comes back. Asynq keeps its text with the task.
type putOffError struct {
	back *jobs.RequeueError
	text string
}

func (p *putOffError) Error() string { return "dibs: it is not this task's turn" + p.text }
func (p *putOffError) Unwrap() error { return p.back }

// away reports whether a store could not be asked, which is no failure of the task.
func away(err error) bool {
	return errors.Is(err, dibs.ErrStore) || errors.Is(err, dibs.ErrBusy) || errors.Is(err, dibs.ErrFull) || errors.Is(err, dibs.ErrClosed)
}

// lastError tells Asynq that a task has failed and is not tried again.
type lastError struct{ error }

func (f *lastError) Unwrap() error        { return f.error }
func (f *lastError) Is(target error) bool { return target == asynq.SkipRetry }

// own returns the handler's own error.
func own(err error) error {
	if f, ok := errors.AsType[*lastError](err); ok {
		return f.error
	}
	return err
}
