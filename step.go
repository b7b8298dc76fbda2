package dibs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
)

// ErrNoLease says that the context does not come from a lease.
var ErrNoLease = errors.New("dibs: the context carries no lease")

// steps is what a lease remembers of its run so far, by the steps' names. It is
// the lease's progress while Step is used.
type steps struct {
	mu     sync.Mutex
	loaded bool
	done   map[string]json.RawMessage
}

// Step runs fn once under the lease that ctx carries (that of Do, Once or
// Acquire) and remembers what it returned together with the lease: when the
// holder crashes and another takes over, a step that was done is skipped and
// its result is given out again. An error is not remembered. A step's name is
// used once in a run. The result is kept as JSON, all of a run's together in at
// most MaxProgress bytes.
//
// The step's result is written only if the lease is still held. So a step that
// was done may run again in one case: when the holder was lost between the end
// of fn and the write. A step with an effect outside should carry the lease's
// fence, or an idempotency key of its own.
//
// In a transaction (see Transactor), fn is outside of it: what a step did stays
// although the transaction may be rolled back, so the context that fn gets carries
// none.
//
// It returns what fn returned; ErrNoLease; ErrLost when the lease is lost; and
// ErrStore when the store did not answer: fn then ran, and its result is given
// out, but it is not remembered.
func Step[T any](ctx context.Context, name string, fn func(context.Context) (T, error)) (result T, err error) {
	lease, ok := FromContext(ctx)
	if !ok {
		return result, ErrNoLease
	}
	key := name
	if run, ok := ctx.Value(runKey{}).(string); ok {
		key = run + "\n" + name
	}
	data, ok, err := lease.steps.find(lease, key)
	if err != nil {
		return result, err
	}
	if ok {
		if err := json.Unmarshal(data, &result); err != nil {
			return result, fmt.Errorf("dibs: the result kept of step %q does not fit a %T: %w", name, result, err)
		}
		return result, nil
	}
	if err := lease.Err(); err != nil {
		return result, err
	}
	if TransactionFrom(ctx) != nil {
		ctx = WithTransaction(ctx, nil)
	}
	if result, err = fn(ctx); err != nil {
		return result, err
	}
	if data, err = json.Marshal(result); err != nil {
		return result, fmt.Errorf("dibs: the result of step %q cannot be kept: %w", name, err)
	}
	return result, lease.steps.keep(ctx, lease, key, data)
}

// runKey is where WithRun keeps the run's name.
type runKey struct{}

// WithRun returns a context whose steps are those of the named run. Under a key
// that is taken for one thing after the other, as those of jobs are, what a crashed
// run had done is then skipped by that run's next attempt alone.
func WithRun(ctx context.Context, run string) context.Context {
	return context.WithValue(ctx, runKey{}, run)
}

// find returns what is remembered of a step.
func (s *steps) find(l *Lease, name string) (json.RawMessage, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		s.done = map[string]json.RawMessage{}
		if p := l.Progress(); len(p) > 0 {
			if err := json.Unmarshal(p, &s.done); err != nil {
				return nil, false, fmt.Errorf("dibs: the progress of key %s was not made by Step: %w", l.Key().Digest(), err)
			}
		}
		s.loaded = true
	}
	data, ok := s.done[name]
	return data, ok, nil
}

// keep writes all steps, with one more, as the lease's progress.
func (s *steps) keep(ctx context.Context, l *Lease, name string, data json.RawMessage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[name] = data
	progress, err := json.Marshal(s.done)
	if err == nil {
		// The step is done, whatever becomes of the caller.
		err = l.Save(context.WithoutCancel(ctx), progress)
	}
	if err != nil {
		delete(s.done, name)
	}
	return err
}
