package asynqjobs

import (
	"errors"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// requeueError tells Asynq that a task comes back. Asynq stores its text with the task.
type requeueError struct {
	back *jobs.RequeueError
	text string
}

func (p *requeueError) Error() string { return "dibs: it is not this task's turn" + p.text }
func (p *requeueError) Unwrap() error { return p.back }

// storeFailed reports whether the store did not answer, which is not a failure of the
// task.
func storeFailed(err error) bool {
	return errors.Is(err, dibs.ErrStore) || errors.Is(err, dibs.ErrBusy) || errors.Is(err, dibs.ErrFull) || errors.Is(err, dibs.ErrClosed)
}

// lastError tells Asynq that a task has failed and will not be tried again.
type lastError struct{ error }

func (f *lastError) Unwrap() error        { return f.error }
func (f *lastError) Is(target error) bool { return target == asynq.SkipRetry }

// handlerError returns the handler's own error.
func handlerError(err error) error {
	if f, ok := errors.AsType[*lastError](err); ok {
		return f.error
	}
	return err
}
