//go:build nightly

package pgstore

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/internal/sqltest"
)

// The kinds of transactions that go through a pooler.
func init() {
	for _, name := range []string{"pgx", "sql"} {
		kind := kinds[name]
		kind.url = func() string { return sharedPooler().URL() }
		kinds[name+", PgBouncer"] = kind
	}
	ways["pgx, PgBouncer"] = func() string { return sharedPooler().URL() }
	ways["sql, PgBouncer"] = func() string { return sharedPooler().URL() }
}

// sharedPooler is a PgBouncer in transaction mode before it. A login that fails must not
// cost 15 s. And sessions that go through hundreds of schemas remember all their plans:
// with each table that is made anywhere they look through them, which took them
// seconds in the end, in which they answered nobody.
var sharedPooler = sync.OnceValue(func() *servertest.PgBouncerServer {
	return servertest.PgBouncer(scope, shared(), &servertest.PgBouncerOptions{
		PoolSize: 60,
		Settings: []string{"server_login_retry = 1", "server_lifetime = 5"},
	})
})

// TestPooler: behind a pooler nobody listens, and who insists on it is told at
// once.
func TestPooler(t *testing.T) {
	t.Parallel()
	s := open(t, sharedPooler().URL(), ownNames())
	if !s.pooled.Load() || !s.unprepared.Load() {
		t.Error("the pooler was not noticed")
	}
	sqltest.Work(t, s)
	if _, err := Open(t.Context(), sharedPooler().URL(), &Options{Schema: s.names.schema, Prefix: s.names.prefix, Wake: WakeListen}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
	found, err := s.Check(t.Context())
	if err != nil || len(found) == 0 {
		t.Fatalf("%v, %v", found, err)
	}
	if !slices.ContainsFunc(found, func(f dibs.Finding) bool { return f.Name == "pooler" }) {
		t.Errorf("found %+v, want the pooler among it", found)
	}
}
