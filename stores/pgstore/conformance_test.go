package pgstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel() // it mostly waits
	storetest.Run(t, &storetest.Harness{
		New: func(trial testing.TB, turn time.Duration) *storetest.Subject {
			server, o := serverFor(trial), ownNames()
			o.pushedTTL = turn
			trial.Cleanup(func() { checkListed(t, server, o) })
			return &storetest.Subject{
				Open:    func() store.Store { return open(trial, server.URL(), o) },
				Restart: func() { server.Kill(); server.Restart() },
				Wipe:    func() { dropSchema(server, o) },
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew: "it reads no clock of its process",
		},
	})
}

// serverFor returns the shared server, or another server to tests that restart it.
func serverFor(t testing.TB) *servertest.PostgresServer {
	if restarts(t) {
		return servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	}
	return shared()
}

// checkListed fails the test if the column listed is not what the schema says it is. It says
// nothing of tables that were dropped.
func checkListed(t testing.TB, server *servertest.PostgresServer, o *Options) {
	t.Helper()
	wrong, err := server.Do(`SELECT encode(k, 'escape') FROM "` + o.Schema + `"."` + o.Prefix + `_key" WHERE listed <> (rec_ends = 0 OR token <> '')`)
	if err == nil && len(wrong) > 0 {
		t.Errorf("the column listed is wrong for the keys %v", wrong)
	}
}

// dropSchema has a server lose a store.
func dropSchema(server *servertest.PostgresServer, o *Options) {
	server.Query(`DROP SCHEMA "` + o.Schema + `" CASCADE`)
}
