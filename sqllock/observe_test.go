package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// watcher keeps what it observes. Each event must have a context with its key.
type watcher struct {
	t      *testing.T
	key    any
	mu     sync.Mutex
	events []dibs.Event
}

func (w *watcher) observe(ctx context.Context, e dibs.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Value(w.key) == nil {
		w.t.Error("observed with another context")
	}
	w.events = append(w.events, e)
}

// kinds returns the kinds of the events.
func (w *watcher) kinds() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, e := range w.events {
		all = append(all, string(e.Kind))
	}
	return strings.Join(all, " ")
}

// TestObserve: each try and each end of a lock is observed once, with how long it took.
func TestObserve(t *testing.T) {
	t.Parallel()
	type spanKey struct{}
	ctx := context.WithValue(t.Context(), spanKey{}, true)
	seen := &watcher{t: t, key: spanKey{}}
	a := newAdvisory(t, &AdvisoryOptions{Observe: seen.observe})
	key := ownKey()
	const wait = 30 * time.Millisecond
	testkit.Must(t, a.Do(ctx, key, nil, func(context.Context) error {
		if _, err := a.Lock(ctx, key, &LockOptions{Wait: wait}); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("a second holder: %v", err)
		}
		return nil
	}))
	l, err := a.Lock(ctx, key, nil)
	testkit.Must(t, err)
	postgres().Query(fmt.Sprintf("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND %s", lockOf(key)))
	<-l.Context().Done()
	testkit.Eventually(t, "the loss is observed", func() bool { return strings.Contains(seen.kinds(), "lost") })
	if err := l.Unlock(); !errors.Is(err, dibs.ErrLost) {
		t.Errorf("unlocked with %v", err)
	}
	if got := seen.kinds(); got != "acquired refused released acquired lost" {
		t.Fatalf("observed %s", got)
	}
	digest := dibs.Key{Name: l.String()}.Digest()
	for _, e := range seen.events {
		if e.Key() != digest {
			t.Errorf("%s has the key %s; want %s", e.Kind, e.Key(), digest)
		}
	}
	if e := seen.events[1]; e.Waited < wait || !errors.Is(e.Err, dibs.ErrHeld) {
		t.Errorf("refused after %v: %v", e.Waited, e.Err)
	}
	if e := seen.events[2]; e.Held < wait || e.Settled <= 0 || e.Settled > e.Held || e.Err != nil {
		t.Errorf("released after %v, of which %v: %v", e.Held, e.Settled, e.Err)
	}
	if e := seen.events[4]; !errors.Is(e.Err, dibs.ErrLost) {
		t.Errorf("lost with %v", e.Err)
	}
	seen.events = nil
	n := newNamed(t, ownDSN(mariadb()), &NamedOptions{Observe: seen.observe})
	testkit.Must(t, n.Do(ctx, "a", nil, func(context.Context) error { return nil }))
	if got := seen.kinds(); got != "acquired released" {
		t.Errorf("observed %s", got)
	}
}

// lockOf returns the condition that finds the lock in pg_locks.
func lockOf(key AdvisoryKey) string {
	class, object, sub := key.inLocks()
	return fmt.Sprintf("classid = %d AND objid = %d AND objsubid = %d", class, object, sub)
}

// checkWaits fails the test unless the key's waits ended like this, and were of the application's
// transaction. The last wait took so long at least.
func (w *watcher) checkWaits(want, name string, last time.Duration) {
	w.t.Helper()
	if got := w.kinds(); got != want {
		w.t.Fatalf("observed %q; want %q", got, want)
	}
	for _, e := range w.events {
		if e.Key() != digest(name) || !e.InTx || e.Kind == dibs.EventRefused && e.Err == nil {
			w.t.Errorf("%s of %s, of a transaction %v, with %v; want %s", e.Kind, e.Key(), e.InTx, e.Err, digest(name))
		}
	}
	if e := w.events[len(w.events)-1]; e.Waited < last {
		w.t.Errorf("waited %v; want at least %v", e.Waited, last)
	}
	w.events = nil
}

// TestObserveLocksOfTransactions: LockTx, LockRows, Sequence and FenceCheck tell each wait. They do not
// see the end of the transaction.
func TestObserveLocksOfTransactions(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		type spanKey struct{}
		ctx := context.WithValue(t.Context(), spanKey{}, true)
		seen := &watcher{t: t, key: spanKey{}}
		b.accounts(t, 2)
		tx, err := b.BeginTx(ctx, nil)
		testkit.Must(t, err)
		defer tx.Rollback()
		_, err = LockRows(ctx, b.d, tx, &RowLock{Observe: seen.observe}, "account", "id", 2, 1)
		testkit.Must(t, err)
		if _, err := LockRows(ctx, b.d, tx, &RowLock{Observe: seen.observe}, "account", "id", 2, 1, 3); !errors.Is(err, sql.ErrNoRows) {
			t.Errorf("a row that is missing: %v", err)
		}
		if _, err := LockRows[int](ctx, b.d, tx, &RowLock{Observe: seen.observe}, "account", "id"); err != nil {
			t.Error(err)
		}
		if got := seen.kinds(); got != "acquired refused" { // nothing of no rows
			t.Errorf("observed %q", got)
		}
		seen.events = seen.events[:1]
		seen.checkWaits("acquired", "account[2 1]", 0)

		other, err := b.BeginTx(ctx, nil)
		testkit.Must(t, err)
		if _, err := LockRows(ctx, b.d, other, &RowLock{Wait: NoWait, Observe: seen.observe}, "account", "id", 1); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("rows that are locked: %v", err)
		}
		seen.checkWaits("refused", "account[1]", 0)
		testkit.Must(t, other.Rollback())
		testkit.Must(t, tx.Rollback())

		numbers, err := NewSequence(b.d, &SequenceOptions{Observe: seen.observe})
		testkit.Must(t, err)
		check, err := NewFenceCheck(b.d, &FenceCheckOptions{Observe: seen.observe})
		testkit.Must(t, err)
		testkit.Must(t, errors.Join(numbers.Migrate(ctx, b.DB), check.Migrate(ctx, b.DB)))
		testkit.Must(t, Transact(ctx, b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := numbers.Next(ctx, tx, ""); err == nil {
				t.Error("an empty scope was accepted")
			}
			_, err := numbers.Next(ctx, tx, "invoice 2026")
			return errors.Join(err, numbers.Raise(ctx, tx, "invoice 2026", 7))
		}))
		seen.checkWaits("acquired acquired", "invoice 2026", 0)
		testkit.Must(t, Transact(ctx, b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
			err := check.Admit(ctx, tx, "printer", 7)
			if late := check.Admit(ctx, tx, "printer", 6); !errors.Is(late, ErrOvertaken) {
				t.Errorf("a holder that was overtaken: %v", late)
			}
			return err
		}))
		if e := seen.events[1]; e.Fence != 6 || !errors.Is(e.Err, dibs.ErrLost) {
			t.Errorf("refused with fence %d and %v", e.Fence, e.Err)
		}
		seen.checkWaits("acquired refused", "printer", 0)

		if b.d != PostgreSQL {
			return
		}
		const wait = 30 * time.Millisecond
		key := ownKey()
		tx, err = b.BeginTx(ctx, nil)
		testkit.Must(t, err)
		testkit.Must(t, LockTx(ctx, tx, key, &LockTxOptions{Observe: seen.observe}))
		if err := LockTx(ctx, beginTx(t, b.DB), key, &LockTxOptions{Wait: wait, Observe: seen.observe}); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("a lock that is held: %v", err)
		}
		seen.checkWaits("acquired refused", advisoryName(key), wait)
		testkit.Must(t, tx.Rollback())
	})
}

// TestObserveTransactions: Row.Update and Transact tell each try and its end.
func TestObserveTransactions(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		type spanKey struct{}
		ctx := context.WithValue(t.Context(), spanKey{}, true)
		seen := &watcher{t: t, key: spanKey{}}
		b.accounts(t, 1)
		boom, conflict := errors.New("boom"), b.conflict()
		row := b.accountOptions()
		row.Lock.Observe = seen.observe
		update := func(row *RowOptions[account], fn func() error) error {
			_, err := newRow(t, b.d, row).Update(ctx, b.DB, func(context.Context, *sql.Tx, *account) error { return fn() }, 1)
			return err
		}
		transact := func(_ *RowOptions[account], fn func() error) error {
			return Transact(ctx, b.d, b.DB, &TransactOptions{Observe: seen.observe}, func(context.Context, *sql.Tx) error { return fn() })
		}
		const held = 20 * time.Millisecond
		for name, call := range map[string]func(*RowOptions[account], func() error) error{
			fmt.Sprint(row.Select, []any{1}): update, b.d.String(): transact,
		} {
			runs := 0
			testkit.Must(t, call(row, func() error {
				if runs++; runs == 1 {
					return conflict
				}
				time.Sleep(held)
				return nil
			}))
			if err := call(row, func() error { return boom }); !errors.Is(err, boom) {
				t.Error(err)
			}
			func() {
				defer func() { _ = recover() }()
				_ = call(row, func() error { panic(boom) })
			}()
			if got := seen.kinds(); got != "acquired abandoned acquired released acquired released acquired released" {
				t.Fatalf("%s: observed %q", name, got)
			}
			for i, e := range seen.events {
				if e.Key() != digest(name) || e.InTx || (e.Err != nil) != (e.Kind == dibs.EventAbandoned) {
					t.Errorf("%d %s of %s with %v; want %s", i, e.Kind, e.Key(), e.Err, digest(name))
				}
			}
			if e := seen.events[3]; e.Held < held || e.Settled <= 0 || e.Settled > e.Held {
				t.Errorf("held for %v, of which the commit took %v", e.Held, e.Settled)
			}
			seen.events = nil
		}

		// Somebody else has the row.
		release := b.holdRow(t, 1)
		wait := 50 * time.Millisecond
		if row.Lock.Wait = wait; b.d == MySQL { // where a statement cannot wait for a time
			row.Lock.Wait, wait = NoWait, 0
		}
		if err := update(row, func() error { return boom }); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("a row that is locked: %v", err)
		}
		if e := seen.events[0]; seen.kinds() != "refused" || e.Waited < wait || !errors.Is(e.Err, dibs.ErrHeld) {
			t.Errorf("%s after %v with %v", seen.kinds(), e.Waited, e.Err)
		}
		release()
	})
}

// conflict returns an error after which the database's transactions are tried again.
func (b bench) conflict() error {
	switch {
	case b.d == PostgreSQL:
		return stateError("40001")
	case b.d.mysql():
		return mysqlError(1213)
	}
	return codeError(5)
}
