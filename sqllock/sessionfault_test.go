package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// A server that is killed ends all locks, and gives them again when it is back.
func TestSessionServerKilled(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	s := openSessionAt(t, server.URL(), nil)
	a, err := NewAdvisory(t.Context(), openDB(t, "pgx", server.URL()), nil)
	if err != nil {
		t.Fatal(err)
	}
	one, err := s.Lock(t.Context(), IntKey(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	two, err := a.Lock(t.Context(), IntKey(2), nil)
	if err != nil {
		t.Fatal(err)
	}
	server.Kill()
	wantCause(t, one, dibs.ErrLost)
	wantCause(t, two, dibs.ErrLost)
	if _, err := s.TryLock(t.Context(), IntKey(1), nil); !errors.Is(err, ErrServer) {
		t.Errorf("while it is down: %v", err)
	}
	if _, err := a.TryLock(t.Context(), IntKey(2), nil); !errors.Is(err, ErrServer) {
		t.Errorf("while it is down: %v", err)
	}
	if err := errors.Join(one.Unlock(), two.Unlock()); !errors.Is(err, dibs.ErrLost) {
		t.Error(err)
	}
	server.Restart()
	nothing := func(ctx context.Context) error { return ctx.Err() }
	if err := s.TryDo(t.Context(), IntKey(1), nil, nothing); err != nil {
		t.Error(err)
	}
	if err := a.TryDo(t.Context(), IntKey(2), nil, nothing); err != nil {
		t.Error(err)
	}
}

// When the application has used all connections up, who waits has none to wait on, and
// gets the lock all the same.
func TestSessionCrowded(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true, MaxConnections: 10})
	one, two := openSessionAt(t, server.URL(), nil), openSessionAt(t, server.URL(), nil)
	l, err := one.Lock(t.Context(), IntKey(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	db := openDB(t, "pgx", server.URL())
	var used []*sql.Conn
	for {
		conn, err := db.Conn(t.Context())
		if err != nil {
			break
		}
		used = append(used, conn)
	}
	t.Logf("the application has %d connections", len(used))
	got := make(chan error, 1)
	go func() {
		got <- two.Do(t.Context(), IntKey(1), nil, func(context.Context) error { return l.Context().Err() })
	}()
	if _, err := two.Lock(t.Context(), IntKey(1), &LockOptions{Wait: 100 * time.Millisecond}); !errors.Is(err, dibs.ErrHeld) {
		t.Error(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("who waited: %v", err)
	}
	for _, conn := range used {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}
