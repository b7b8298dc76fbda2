package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// sessionLock is what Advisory and Named do alike.
type sessionLock interface {
	Lock(ctx context.Context, name string, o *LockOptions) (*Lock, error)
	TryLock(ctx context.Context, name string, o *LockOptions) (*Lock, error)
	Do(ctx context.Context, name string, o *LockOptions, fn func(context.Context) error) error
	Held(ctx context.Context, name string) (bool, error)
}

// namedAdvisory is an Advisory whose keys are names in a schema.
type namedAdvisory struct {
	*Advisory
	schema string
}

func (a namedAdvisory) Lock(ctx context.Context, name string, o *LockOptions) (*Lock, error) {
	return a.Advisory.Lock(ctx, NameKey(a.schema, name), o)
}

func (a namedAdvisory) TryLock(ctx context.Context, name string, o *LockOptions) (*Lock, error) {
	return a.Advisory.TryLock(ctx, NameKey(a.schema, name), o)
}

func (a namedAdvisory) Do(ctx context.Context, name string, o *LockOptions, fn func(context.Context) error) error {
	return a.Advisory.Do(ctx, NameKey(a.schema, name), o, fn)
}

func (a namedAdvisory) Held(ctx context.Context, name string) (bool, error) {
	return a.Advisory.Held(ctx, NameKey(a.schema, name))
}

// lockKind is a kind of lock that belongs to a session, on a server. Its names are a test's own.
type lockKind struct {
	open    func(heartbeat time.Duration) (sessionLock, *sql.DB) // as one more process has it
	waiters func(name string) int                                // sessions
	end     func(name string)                                    // ends the session that has the lock
}

// onLocks runs a test with each kind.
func onLocks(t *testing.T, test func(t *testing.T, k lockKind)) {
	t.Parallel()
	for driver, open := range map[string]func(*testing.T) *sql.DB{
		"pgx": func(t *testing.T) *sql.DB { return postgresDB(t) }, "another driver": opaqueDB,
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			own := testkit.Own()
			test(t, lockKind{
				open: func(heartbeat time.Duration) (sessionLock, *sql.DB) {
					db := open(t)
					a, err := NewAdvisory(t.Context(), db, &AdvisoryOptions{Heartbeat: heartbeat, SessionPooler: driver != "pgx"})
					testkit.Must(t, err)
					return namedAdvisory{a, own}, db
				},
				waiters: func(name string) int {
					return len(postgres().Query("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND " + lockOf(NameKey(own, name))))
				},
				end: func(name string) {
					rows := postgres().Query("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND " + lockOf(NameKey(own, name)))
					if len(rows) != 1 {
						t.Fatalf("%d sessions have it", len(rows))
					}
				},
			})
		})
	}
	for name, server := range namedServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := server()
			dsn := ownDSN(s)
			observer := newNamed(t, dsn, nil)
			test(t, lockKind{
				open: func(heartbeat time.Duration) (sessionLock, *sql.DB) {
					n := newNamed(t, dsn, &NamedOptions{Heartbeat: heartbeat})
					return n, n.db
				},
				waiters: func(string) int { return len(waiters(s, observer)) },
				end: func(name string) {
					s.Query("KILL " + s.Query("SELECT IS_USED_LOCK('" + observer.Name(name) + "')")[0][0])
				},
			})
		})
	}
}

// process opens a lock without options.
func (k lockKind) process() sessionLock {
	l, _ := k.open(0)
	return l
}

// free fails the test unless the lock is soon free, without waiters.
func (k lockKind) free(t *testing.T, name string) {
	t.Helper()
	l := k.process()
	testkit.Eventually(t, "nothing is left of "+name, func() bool {
		held, err := l.Held(t.Context(), name)
		return err == nil && !held && k.waiters(name) == 0
	})
}

func TestSessionLockExcludes(t *testing.T) {
	onLocks(t, func(t *testing.T, k lockKind) {
		one, two := k.process(), k.process()
		first, err := one.Lock(t.Context(), "order 7", nil)
		testkit.Must(t, err)
		for _, l := range []sessionLock{one, two} { // in this process, and in the server
			_, err := l.TryLock(t.Context(), "order 7", nil)
			if held, ok := errors.AsType[*HeldError](err); !ok || held.Waited != 0 || !errors.Is(err, dibs.ErrHeld) {
				t.Errorf("TryLock: %v", err)
			}
			for _, wait := range []time.Duration{time.Microsecond, 300 * time.Millisecond} {
				waited(t, wait, func() error {
					_, err := l.Lock(t.Context(), "order 7", &LockOptions{Wait: wait})
					return err
				})
			}
		}
		if held, err := two.Held(t.Context(), "order 7"); !held || err != nil {
			t.Errorf("Held: %v, %v", held, err)
		}
		got := make(chan error, 1)
		go func() {
			got <- two.Do(t.Context(), "order 7", nil, func(context.Context) error { return first.Context().Err() })
		}()
		testkit.Eventually(t, "the other waits", func() bool { return k.waiters("order 7") == 1 })
		testkit.Check(t, first.Context().Err())
		for range 2 {
			testkit.Check(t, first.Unlock())
		}
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("the other came while the first one held: %v", err)
		}
		k.free(t, "order 7")
	})
}

// A wait that is given up does not go on in the server.
func TestSessionLockCancelledWait(t *testing.T) {
	onLocks(t, func(t *testing.T, k lockKind) {
		l, err := k.process().Lock(t.Context(), "x", nil)
		testkit.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got, second := make(chan error, 1), k.process()
		go func() {
			_, err := second.Lock(ctx, "x", nil)
			got <- err
		}()
		testkit.Eventually(t, "it waits in the server", func() bool { return k.waiters("x") == 1 })
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		testkit.Eventually(t, "no session waits", func() bool { return k.waiters("x") == 0 })
		testkit.Check(t, l.Unlock())
		k.free(t, "x")
	})
}

// The lock is given up on every way out.
func TestSessionLockWaysOut(t *testing.T) {
	onLocks(t, func(t *testing.T, k lockKind) {
		l, db := k.open(0)
		begin := func(ctx context.Context) *sql.Tx {
			tx, err := db.BeginTx(ctx, nil)
			testkit.Check(t, err)
			return tx
		}
		for name, way := range map[string]func(ctx context.Context) error{
			"return": func(context.Context) error { return nil },
			"error":  func(context.Context) error { return errors.New("boom") },
			"panic":  func(context.Context) error { panic("boom") },
			"Goexit": func(context.Context) error { runtime.Goexit(); return nil },
			"an aborted transaction": func(ctx context.Context) error {
				tx := begin(ctx)
				defer tx.Rollback()
				_, err := tx.ExecContext(ctx, "SELECT * FROM nothing")
				return err
			},
			"a transaction left open": func(ctx context.Context) error { begin(ctx); return nil },
		} {
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }()
				_ = l.Do(t.Context(), name, nil, func(ctx context.Context) error {
					if held, err := l.Held(ctx, name); !held || err != nil {
						t.Errorf("%s: %v, %v", name, held, err)
					}
					return way(ctx)
				})
			}()
			<-done
			if held, err := l.Held(t.Context(), name); held || err != nil {
				t.Errorf("%s: held is %v, %v", name, held, err)
			}
		}
	})
}

// A session that ends, ends its lock, and no other one.
func TestSessionEndsItsLock(t *testing.T) {
	onLocks(t, func(t *testing.T, k lockKind) {
		beats, _ := k.open(20 * time.Millisecond)
		calm, _ := k.open(time.Hour)
		l, err := beats.Lock(t.Context(), "x", nil)
		testkit.Must(t, err)
		stays, err := beats.Lock(t.Context(), "y", nil)
		testkit.Must(t, err)
		k.end("x")
		wantCause(t, l, dibs.ErrLost)
		if err := l.Unlock(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		testkit.Check(t, stays.Unlock())
		// Found out only by Unlock.
		err = calm.Do(t.Context(), "x", &LockOptions{Wait: testkit.Limit}, func(context.Context) error {
			k.end("x")
			return nil
		})
		if !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Do: %v", err)
		}
		// A session ends before the server has given up what it has.
		if err := calm.Do(t.Context(), "x", &LockOptions{Wait: testkit.Limit}, func(context.Context) error { return nil }); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// wantCause fails the test unless the lock's context ends, with that cause.
func wantCause(t testing.TB, l *Lock, want error) {
	t.Helper()
	testkit.Await(t, fmt.Sprintf("the end of the context of %v", l), l.Context().Done())
	if cause := context.Cause(l.Context()); !errors.Is(cause, want) {
		t.Fatalf("cause: %v; want %v", cause, want)
	}
}
