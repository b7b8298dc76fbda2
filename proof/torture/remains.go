package torture

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/history"
)

const (
	// askLimit bounds what the runner asks of a store at the end.
	askLimit = 30 * time.Second
	// forgetLimit is how much longer that may take for each record.
	forgetLimit = 50 * time.Millisecond
)

// remains is what a run has left in the store.
type remains struct {
	keys      []string // held or waited for, though nobody is there any more
	forgotten int      // records and abandoned attempts that were removed
	effects   int      // of transactions
	thawed    int      // keys that were released by force
	unlisted  string   // why the store cannot be looked into
}

// collect looks at what the workers have left, and removes what has to be removed.
func (r *run) collect(life context.Context) error {
	ctx, cancel := context.WithTimeout(life, askLimit)
	defer cancel()
	if d := r.store.effects; d != nil {
		rows, err := again(ctx, func() ([]effect, error) { return d.list(ctx, r.id) })
		if err != nil {
			return fmt.Errorf("what was done in transactions cannot be read: %w", err)
		}
		for _, row := range rows {
			e := history.Event{Kind: history.Effect, Name: "transaction", Key: row.name, Data: history.Data([]byte(row.result)), Retention: long}
			if err := r.w.Happened(e); err != nil {
				return err
			}
		}
		r.remains.effects = len(rows)
	}
	in, ok := r.store.Store.(dibs.Inspector)
	if !ok {
		r.remains.unlisted = "the store is no dibs.Inspector"
		return nil
	}
	// Leases and places of those who were killed run out, and no later.
	deadline := time.Now().Add(r.TTL + dibs.PushedTTL + sweepSlack)
	for {
		left, over, err := r.list(ctx, in)
		if err == nil && len(left) == 0 {
			return r.forget(life, in, over)
		}
		if err == nil && time.Now().After(deadline) {
			r.remains.keys = left
			return nil
		}
		if !rest(ctx, 20*time.Millisecond) {
			return fmt.Errorf("the store cannot be listed: %w", cmp.Or(err, context.Cause(ctx)))
		}
	}
}

// again asks until there is an answer or ctx ends.
func again[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for {
		got, err := ask()
		if err == nil || !rest(ctx, 50*time.Millisecond) {
			return got, err
		}
	}
}

// thaw releases keys by force whose leases were granted while the server's clock was
// ahead, and which nobody gives back: they last until that clock has caught up. It is
// what an operator does with "dibs release".
func (r *run) thaw(ctx context.Context) error {
	in, ok := r.store.Store.(dibs.Inspector)
	if !ok || !slices.ContainsFunc(r.faults, func(f *fault.Fault) bool { return f.Alone }) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	frozen, err := again(ctx, func() (frozen []dibs.Entry, err error) {
		for e, err := range in.List(ctx, dibs.Query{Namespace: &r.namespace}) {
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(e.Attempts, func(a dibs.Attempt) bool { return a.Left > r.TTL+time.Second }) {
				frozen = append(frozen, e)
			}
		}
		return frozen, nil
	})
	if err != nil {
		return fmt.Errorf("the store cannot be listed: %w", err)
	}
	for _, e := range frozen {
		call := history.Now()
		if _, err := in.ForceRelease(ctx, e.Key, ""); err != nil {
			return fmt.Errorf("a key that is frozen cannot be released: %w", err)
		}
		r.remains.thawed++
		if err := r.w.Happened(history.Event{Kind: history.Fault, Name: "evict", Key: e.Key.Name, Times: 1, Call: call}); err != nil {
			return err
		}
	}
	return nil
}

// list returns the keys that are held or waited for, and those of which something is
// remembered.
func (r *run) list(ctx context.Context, in dibs.Inspector) (left []string, over []dibs.Key, err error) {
	for e, err := range in.List(ctx, dibs.Query{Namespace: &r.namespace}) {
		if err != nil {
			return nil, nil, err
		}
		if e.Condition == dibs.ConditionHeld || e.Waiters > 0 {
			left = append(left, fmt.Sprintf("%s is %s, with %d waiters", e.Key.Name, e.Condition, e.Waiters))
			continue
		}
		over = append(over, e.Key)
	}
	slices.Sort(left)
	return left, over, nil
}

// forget removes what the store remembers of the run, and then nothing may be left.
func (r *run) forget(ctx context.Context, in dibs.Inspector, keys []dibs.Key) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit+time.Duration(len(keys))*forgetLimit)
	defer cancel()
	for _, key := range keys {
		if _, err := in.Forget(ctx, key); err != nil {
			return fmt.Errorf("a record of the run cannot be removed: %w", err)
		}
	}
	r.remains.forgotten = len(keys)
	left, over, err := r.list(ctx, in)
	if err != nil {
		return fmt.Errorf("the store cannot be listed: %w", err)
	}
	for _, key := range over {
		left = append(left, strings.TrimSpace(key.Name)+" is still there after it was forgotten")
	}
	r.remains.keys = left
	return nil
}
