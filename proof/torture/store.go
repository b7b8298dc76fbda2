package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

const (
	// askLimit bounds the runner's calls of the store at the end.
	askLimit = 30 * time.Second
	// forgetLimit is added to askLimit for each record.
	forgetLimit = 50 * time.Millisecond
)

// remains is what a run has left in the store.
type remains struct {
	keys      []string // held or waited for, although all workers have ended
	forgotten int      // records and abandoned attempts that were removed
	effects   int      // of transactions
	stale     int      // keys that releaseStale released
	unlisted  string   // why the store cannot be listed
}

// collect looks for what the workers have left, and removes their records.
func (r *run) collect(restarts context.Context) error {
	ctx, cancel := context.WithTimeout(restarts, askLimit)
	defer cancel()
	if r.store.Locker != nil {
		return nil
	}
	if d := r.store.effects; d != nil {
		rows, err := again(ctx, func() ([]effect, error) { return d.list(ctx, r.id) })
		if err != nil {
			return fmt.Errorf("the table of effects cannot be read: %w", err)
		}
		for _, row := range rows {
			e := history.Event{Kind: history.Effect, Key: row.name, Data: history.Data([]byte(row.result)), Retention: long}
			if err := r.w.Happened(e); err != nil {
				return err
			}
		}
		r.remains.effects = len(rows)
	}
	in, ok := r.store.Store.(store.Inspector)
	if !ok {
		r.remains.unlisted = "the store is not a dibs.Inspector"
		return nil
	}
	// The leases and places of killed workers must have run out by then.
	deadline := time.Now().Add(r.TTL + store.PushedTTL + slackOf(r.URL))
	for {
		left, over, err := r.list(ctx, in)
		if err == nil && len(left) == 0 {
			return r.forget(restarts, in, over)
		}
		if err == nil && time.Now().After(deadline) {
			r.remains.keys = left
			return nil
		}
		if backoff.Sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("the store cannot be listed: %w", cmp.Or(err, context.Cause(ctx)))
		}
	}
}

// again repeats a call until it succeeds or ctx ends.
func again[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for {
		got, err := ask()
		if err == nil || backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			return got, err
		}
	}
}

// releaseStale releases keys by force. Their leases were granted while the server's clock was
// ahead, their holders are dead, and they would stand until the clock has caught up. An operator
// does this with "dibs release".
func (r *run) releaseStale(ctx context.Context) error {
	in, ok := r.store.Store.(store.Inspector)
	if !ok || !slices.ContainsFunc(r.faults, func(f *fault.Fault) bool { return f.Alone }) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	stale, err := again(ctx, func() (stale []store.Entry, err error) {
		for e, err := range in.List(ctx, store.Query{Namespace: &r.namespace}) {
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(e.Runs, func(a store.Run) bool { return a.Left > r.TTL+time.Second }) {
				stale = append(stale, e)
			}
		}
		return stale, nil
	})
	if err != nil {
		return fmt.Errorf("the store cannot be listed: %w", err)
	}
	for _, e := range stale {
		call := history.Now()
		if _, err := in.ForceRelease(ctx, e.Key, ""); err != nil {
			return fmt.Errorf("a stale key cannot be released: %w", err)
		}
		r.remains.stale++
		if err := r.w.Happened(history.Event{Kind: history.Fault, Name: "evict", Key: e.Key.Name, Times: 1, Call: call}); err != nil {
			return err
		}
	}
	return nil
}

// list returns the keys that are held or waited for, and the other keys that the store knows.
func (r *run) list(ctx context.Context, in store.Inspector) (left []string, over []dibs.Key, err error) {
	for e, err := range in.List(ctx, store.Query{Namespace: &r.namespace}) {
		if err != nil {
			return nil, nil, err
		}
		if e.Condition == store.ConditionHeld || e.Waiters+e.Reserved > 0 {
			left = append(left, fmt.Sprintf("%s is %s, with %d waiters and %d reserved places", e.Key.Name, e.Condition, e.Waiters, e.Reserved))
			continue
		}
		over = append(over, e.Key)
	}
	slices.Sort(left)
	return left, over, nil
}

// forget removes the records of the run. Then the store must know no key of it.
func (r *run) forget(ctx context.Context, in store.Inspector, keys []dibs.Key) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit+time.Duration(len(keys))*forgetLimit)
	defer cancel()
	for _, key := range keys {
		if _, err := in.Forget(ctx, key, ""); err != nil {
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

// Open opens the store that a URL names. The runner and every worker call it.
type Open func(ctx context.Context, url string) (*Store, error)

// Store is an open store.
type Store struct {
	Store dibs.Store
	// Locker is what the workers use in the place of a dibs.Client, if it is not nil. Then Store
	// is nil, and only the sections are checked.
	Locker Locker
	// Close closes the store, and its database if it has one.
	Close func() error

	effects *effects // nil if applications cannot have transactions with the keys
}

// OpenStore opens a store as the program dibs does.
// It returns anystore.ErrURL for a store in memory, because processes cannot share one, and
// otherwise the errors of anystore.Open.
func OpenStore(ctx context.Context, url string) (*Store, error) {
	if strings.HasPrefix(url, "memory:") {
		return nil, fmt.Errorf("%w: worker processes cannot share a store in memory; name another one", anystore.ErrURL)
	}
	s, err := anystore.Open(ctx, url, anystore.ToUse)
	if err != nil {
		return nil, err
	}
	e, err := openEffects(url, s.Store)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	opened := &Store{Store: s.Store, Close: s.Close, effects: e}
	if e != nil {
		opened.Close = func() error {
			_ = e.db.Close() // an error here is about an idle connection that a fault broke
			return s.Close()
		}
	}
	return opened, nil
}
