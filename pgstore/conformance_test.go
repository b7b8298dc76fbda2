package pgstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/storetest"
)

const (
	wake     = 10 * time.Second // one that is lost never comes
	parallel = 6
)

// shortFor returns what a lease lasts that is meant to run out: longer than the calls
// of a trial take together, on a machine as busy as this one is now. (With a fifth of
// one processor for all, the calls of one took 0.3 to 0.9 s.)
func shortFor(t *testing.T, url string) time.Duration {
	s := open(t, url, ownNames())
	start := time.Now()
	for range 20 {
		cycle(t, s, dibs.Key{Name: "k"})
	}
	return min(max(2*time.Since(start), 400*time.Millisecond), 4*time.Second)
}

func TestConformance(t *testing.T) {
	t.Run("Direct", func(t *testing.T) {
		storetest.Run(t, &storetest.Harness{
			Short: shortFor(t, shared().URL()), Wake: wake, Parallel: parallel,
			New: func(t testing.TB) *storetest.Backend {
				server := serverFor(t)
				o := ownNames()
				return &storetest.Backend{
					Open:    func() dibs.Store { return open(t, server.URL(), o) },
					Restart: func() { server.Kill(); server.Restart() },
					Wipe:    func() { server.Query(`DROP SCHEMA "` + o.Schema + `" CASCADE`) },
				}
			},
			Lacks: map[storetest.Feature]string{
				storetest.Skew: "it reads no clock of its process",
			},
		})
	})
	t.Run("PgBouncer", func(t *testing.T) {
		storetest.Run(t, &storetest.Harness{
			Short: shortFor(t, sharedPooler().URL()), Wake: wake, Parallel: parallel,
			New: func(t testing.TB) *storetest.Backend {
				server, url := serverFor(t), ""
				if server == shared() {
					url = sharedPooler().URL()
				} else {
					url = servertest.PgBouncer(t, server, &servertest.PgBouncerOptions{
						Settings: []string{"server_login_retry = 1"},
					}).URL()
				}
				o := ownNames()
				return &storetest.Backend{
					Open:    func() dibs.Store { return newPolling(open(t, url, o)) },
					Restart: func() { server.Kill(); server.Restart() },
					Wipe:    func() { server.Query(`DROP SCHEMA "` + o.Schema + `" CASCADE`) },
				}
			},
			Lacks: map[storetest.Feature]string{
				storetest.Skew:          "it reads no clock of its process",
				storetest.GrantNotifier: "nobody can listen through a pooler, so no grant is told",
			},
		})
	})
}

// serverFor returns the server that all share, and another one to those who restart
// theirs.
func serverFor(t testing.TB) *servertest.PostgresServer {
	if restarts(t) {
		return servertest.Postgres(t, nil)
	}
	return shared()
}

// polling is a store with all but NotifyGrants.
type polling struct {
	dibs.Store
	dibs.Inspector
	dibs.Pruner
	dibs.Notifier
	dibs.Batcher
}

func newPolling(s *Store) polling { return polling{s, s, s, s, s} }
