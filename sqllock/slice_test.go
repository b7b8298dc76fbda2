package sqllock

import (
	"context"
	"database/sql/driver"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// A caller that waits is not a statement in progress for longer than a second, however
// long it waits, and for whichever of its keys.
func TestAdvisoryWaitsInShortStatements(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(context.Context, *Advisory) error{
		"Lock": func(ctx context.Context, a *Advisory) error { _, err := a.Lock(ctx, IntKey(2), nil); return err },
		"Lock, shared": func(ctx context.Context, a *Advisory) error {
			_, err := a.Lock(ctx, IntKey(2), &LockOptions{Shared: true})
			return err
		},
		"Lock and a Wait": func(ctx context.Context, a *Advisory) error {
			_, err := a.Lock(ctx, IntKey(2), &LockOptions{Wait: time.Hour})
			return err
		},
		"LockAll": func(ctx context.Context, a *Advisory) error {
			_, err := a.LockAll(ctx, []AdvisoryKey{IntKey(1), IntKey(2)}, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				waits := 0
				server := &fakeServer{query: func(query string, args []driver.NamedValue) ([]driver.Value, error) {
					if !strings.Contains(query, "lock_timeout") {
						return []driver.Value{true}, nil
					}
					if args[0].Value == int64(1) {
						return []driver.Value{true}, nil // the first of two keys is free
					}
					waits++
					ms, err := strconv.Atoi(args[len(args)-1].Value.(string))
					if err != nil || ms < 1 || ms > 1000 {
						t.Errorf("a statement waits %v ms, %v", args[len(args)-1].Value, err)
					}
					time.Sleep(time.Duration(ms) * time.Millisecond)
					return nil, stateError("55P03")
				}}
				db := server.open(t)
				a := &Advisory{db: db, sessions: sessions[AdvisoryKey]{db: db, functions: &advisoryFunctions{}, heartbeat: time.Second}}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				if err := lock(ctx, a); err == nil || waits < 500 {
					t.Errorf("%v, after %d statements", err, waits)
				}
			})
		})
	}
}

// An index is created while a caller waits, although it waits for all earlier statements.
func TestAdvisoryWaiterHoldsUpNoIndex(t *testing.T) {
	t.Parallel()
	a := newAdvisory(t, nil)
	db, key := a.db, ownKey()
	for _, query := range []string{"CREATE TABLE booking (seat int)", "INSERT INTO booking VALUES (1)"} {
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	held, err := a.Lock(t.Context(), key, nil)
	testkit.Must(t, err)
	got := make(chan error, 1)
	go func() {
		l, err := a.Lock(context.Background(), key, nil)
		if err == nil {
			err = l.Unlock()
		}
		got <- err
	}()
	testkit.Eventually(t, "it waits", func() bool { return advisoryLocks(t, key) == 2 })
	conn, err := db.Conn(t.Context())
	testkit.Must(t, err)
	defer conn.Close()
	// A statement of a minute would still be in progress when this is over.
	for _, query := range []string{"SET lock_timeout = '30s'", "CREATE INDEX CONCURRENTLY seats ON booking (seat)", "REINDEX INDEX CONCURRENTLY seats"} {
		if _, err := conn.ExecContext(t.Context(), query); err != nil {
			t.Errorf("%s: %v", query, err)
		}
	}
	if len(got) > 0 {
		t.Error("it does not wait any more")
	}
	testkit.Check(t, errors.Join(held.Unlock(), <-got))
}

// A limit for statements is none for a wait, which has its own.
func TestNamedOutlastsMaxStatementTime(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *servertest.MariaDBServer) {
		dsn := ownDSN(s)
		holder := newNamed(t, dsn, nil)
		limited := dsn + "?max_statement_time=0.1"
		if !holder.sessions.functions.(*namedFunctions).maria {
			limited = dsn + "?max_execution_time=100"
		}
		n := newNamed(t, limited, nil)
		for name, lock := range map[string]func(*LockOptions) (*Lock, error){
			"Lock":    func(o *LockOptions) (*Lock, error) { return n.Lock(t.Context(), "a", o) },
			"LockAll": func(o *LockOptions) (*Lock, error) { return n.LockAll(t.Context(), []string{"a", "b"}, o) },
		} {
			held, err := holder.Lock(t.Context(), "a", nil)
			testkit.Must(t, err)
			// MySQL is asked to wait for whole seconds.
			if _, err := lock(&LockOptions{Wait: 1100 * time.Millisecond}); !errors.Is(err, dibs.ErrHeld) {
				t.Errorf("%s: %v", name, err)
			}
			got := make(chan error, 1)
			go func() {
				l, err := lock(nil)
				if err == nil {
					err = l.Unlock()
				}
				got <- err
			}()
			testkit.Eventually(t, "it waits", func() bool { return len(waiters(s, n)) == 1 })
			if err := errors.Join(held.Unlock(), <-got); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
