//go:build nightly

package pgstore

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
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

// loginSoon: a failed login must not cost 15 s.
var loginSoon = []string{"server_login_retry = 1"}

// sharedPooler is a PgBouncer in transaction mode in front of the server. Its sessions have no
// server_lifetime, because PgBouncer 1.18 ends when a session expires that is being canceled.
var sharedPooler = sync.OnceValue(func() *servertest.PgBouncerServer {
	return servertest.PgBouncer(scope, shared(), &servertest.PgBouncerOptions{PoolSize: 60, Settings: loginSoon})
})

// TestPooler: behind a pooler the store polls, and WakeListen is an error at once.
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
	if !slices.ContainsFunc(found, func(f store.Finding) bool { return f.Name == "pooler" }) {
		t.Errorf("found %+v, want the pooler among it", found)
	}
}

// TestConformanceBySQLBehindPgBouncer: a pooler makes no difference to leases by SQL.
func TestConformanceBySQLBehindPgBouncer(t *testing.T) {
	t.Parallel() // it mostly waits
	conformBySQL(t, func(trial testing.TB, server *servertest.PostgresServer) string {
		return servertest.PgBouncer(trial, server, &servertest.PgBouncerOptions{Settings: loginSoon}).URL()
	})
}
