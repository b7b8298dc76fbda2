package idempotency

import (
	"context"

	"github.com/dibs-go/dibs"
)

// Step is dibs.Step, where handlers find it: it runs fn once under the key of
// the request, whose context ctx is, and remembers what fn returned together
// with the key's lease. When the process crashes and the retry runs again, a
// step that was done is skipped and its result is given out.
//
// It returns what dibs.Step returns; dibs.ErrNoLease for a request that carried
// no key, or that runs while the store does not answer (Options.FailOpen): there
// is nothing to remember the step with, and fn did not run.
func Step[T any](ctx context.Context, name string, fn func(context.Context) (T, error)) (T, error) {
	return dibs.Step(ctx, name, fn)
}
