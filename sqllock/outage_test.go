//go:build nightly

package sqllock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/internal/servertest"
)

// A lock stays while nothing is wrong, however often it is looked after.
func TestSessionQuiet(t *testing.T) {
	t.Parallel()
	s := openSession(t, own(), &SessionOptions{Heartbeat: 100 * time.Millisecond})
	l, err := s.Lock(t.Context(), ownKey(), nil)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.Context().Done():
		t.Fatalf("it ended while nothing was wrong: %v", context.Cause(l.Context()))
	case <-time.After(500 * time.Millisecond):
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

// A server that is stopped for longer than it may be silent ends all locks, while it has
// them still: nobody else gets one before.
func TestSessionServerPaused(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	s := openSessionAt(t, server.URL(), &SessionOptions{Heartbeat: 50 * time.Millisecond})
	l, err := s.Lock(t.Context(), IntKey(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	server.Pause()
	wantCause(t, l, dibs.ErrLost)
	server.Continue()
	// The server ends the old session when it hears that the connection is gone.
	if err := s.Do(t.Context(), IntKey(1), &LockOptions{Wait: failpoint.Limit}, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}

// A server without memory for more locks refuses some, and keeps the others.
func TestSessionServerFull(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{
		NoSync: true, MaxConnections: 20, Settings: []string{"max_locks_per_transaction = 10"},
	})
	s := openSessionAt(t, server.URL(), nil)
	// The server has no memory for a connection later.
	look, err := openDB(t, "pgx", server.URL()).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	count := func() (n int) {
		t.Helper()
		if err := look.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(); n != 0 {
		t.Errorf("%d at first", n)
	}
	const n = 5000
	locks, errs := make([]*Lock, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { locks[i], errs[i] = s.TryLock(t.Context(), IntKey(int64(i)), nil) })
	}
	all.Wait()
	got := 0
	for i, l := range locks {
		switch {
		case l != nil:
			got++
		case !errors.Is(errs[i], ErrServer) || sqlState(errs[i]) != "53200":
			t.Fatal(errs[i])
		}
	}
	if got == 0 || got == n || got != count() {
		t.Errorf("%d think that they have one, the server says %d", got, count())
	}
	for _, l := range locks {
		if l != nil {
			if err := l.Unlock(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := count(); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// A Session waits also where the role has a limit for its statements.
func TestSessionStatementTimeout(t *testing.T) {
	t.Parallel()
	s, key := openSessionAt(t, withParameter(postgres().URL(), "statement_timeout", "1000"), nil), ownKey()
	l, err := newAdvisory(t, nil).Lock(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		got <- s.Do(t.Context(), key, nil, func(context.Context) error { return nil })
	}()
	eventually(t, "it waits", func() bool { return advisoryLocks(t, key) == 2 })
	select {
	case err := <-got:
		t.Errorf("the session does not wait: %v", err)
	case <-time.After(1500 * time.Millisecond):
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}
