package dibs

import (
	"context"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/store"
)

// ErrNoLease: the context does not come from a lease.
var ErrNoLease = errors.New("dibs: the context carries no lease")

// Step runs fn once under the lease that ctx carries (of Do, Once or Acquire) and keeps the
// result with the lease. If the holder crashes, the next holder's Step of the same name
// skips fn and returns that result. An error is not kept. Each step of a run has its own
// name. The results are kept as JSON, those of one run together in at most MaxProgress
// bytes.
//
// The result is written only if the lease is still held. So a finished step runs again if
// its holder crashed or lost the lease between the end of fn and the write. A step with an
// effect outside should send the lease's fence, or an idempotency key of its own.
//
// In a transaction (see Transactor), fn runs outside of it and its context carries none,
// because the step's result stays if the transaction is rolled back.
//
// Step returns what fn returned, ErrNoLease, ErrLost when the lease is lost, or ErrStore
// when the store did not answer. After ErrStore fn has run and its result is returned, but
// not kept.
func Step[T any](ctx context.Context, name string, fn func(context.Context) (T, error)) (result T, err error) {
	if fn == nil {
		return result, noFunction("Step")
	}
	lease, ok := FromContext(ctx)
	if !ok {
		return result, ErrNoLease
	}
	key := name
	if run, ok := ctx.Value(runKey{}).(string); ok {
		key = run + "\n" + name
	}
	data, ok, err := lease.steps.find(lease.Progress(), key)
	if err != nil {
		return result, fmt.Errorf("dibs: the progress of key %s was not made by Step: %w", lease.Key().Digest(), err)
	}
	if ok {
		if result, err = unmarshal[T](data); err != nil {
			return result, fmt.Errorf("dibs: the result kept of step %q does not fit a %T: %w", name, result, err)
		}
		return result, nil
	}
	if err := lease.Err(); err != nil {
		return result, err
	}
	if store.TransactionFrom(ctx) != nil {
		ctx = store.WithTransaction(ctx, nil)
	}
	if result, err = fn(ctx); err != nil {
		return result, err
	}
	if data, err = marshal(result); err != nil {
		return result, fmt.Errorf("dibs: the result of step %q cannot be kept: %w", name, err)
	}
	return result, lease.steps.keep(key, data, func(progress []byte) error {
		return lease.Save(context.WithoutCancel(ctx), progress) // because the step is done
	})
}

// runKey is where WithRun keeps the run's name.
type runKey struct{}

// WithRun returns a context whose steps belong to the named run. It is for keys under which
// different runs follow each other, such as the keys of jobs: the steps of a crashed run are
// then skipped only by that run's next attempt.
func WithRun(ctx context.Context, run string) context.Context {
	return context.WithValue(ctx, runKey{}, run)
}
