//go:build nightly

package sqllock

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
)

// pooler is a PgBouncer in transaction mode before postgres.
var pooler = sync.OnceValue(func() *servertest.PgBouncerServer {
	return servertest.PgBouncer(scope, postgres(), &servertest.PgBouncerOptions{PoolSize: 20})
})

func init() { transactionURLs["database/sql, pooler"] = func() string { return pooler().URL() } }

// Locks that belong to a session are refused behind a pooler that hands sessions on.
func TestPoolerRefused(t *testing.T) {
	t.Parallel()
	session := servertest.PgBouncer(t, postgres(), &servertest.PgBouncerOptions{Mode: "session"})
	plain := withParameter(pooler().URL(), "default_query_exec_mode", "exec")
	tests := []struct {
		name, driver, url string
		options           *AdvisoryOptions
		want              error
	}{
		{"pgx, transaction mode", "pgx", plain, nil, ErrPooler},
		{"another driver, transaction mode", "opaque", plain, nil, ErrPooler},
		{"session mode", "pgx", session.URL(), nil, ErrPooler},
		{"session mode, as is said", "pgx", session.URL(), &AdvisoryOptions{SessionPooler: true}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a, err := NewAdvisory(t.Context(), openDB(t, test.driver, test.url), test.options)
			if !errors.Is(err, test.want) {
				t.Fatalf("got %v; want %v", err, test.want)
			}
			if err == nil {
				heldOnce(t, a)
			}
		})
	}
}

// A pool that comes to a pooler later takes nothing there.
func TestPoolerNoticedLater(t *testing.T) {
	t.Parallel()
	a, key := newAdvisory(t, nil), ownKey()
	a.sessions.db = openDB(t, "pgx", withParameter(pooler().URL(), "default_query_exec_mode", "exec"))
	for _, lock := range []func(context.Context, AdvisoryKey, *LockOptions) (*Lock, error){a.Lock, a.TryLock} {
		if _, err := lock(t.Context(), key, nil); !errors.Is(err, ErrPooler) {
			t.Error(err)
		}
	}
	if n := advisoryLocks(t, key); n != 0 {
		t.Errorf("%d have it", n)
	}
}
