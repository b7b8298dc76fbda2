package pgstore

import (
	"database/sql"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/bysql"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
)

// openBySQL opens a store that speaks SQL, as an application that a pooler serves.
func openBySQL(t testing.TB, url string, o *Options) store.Store {
	t.Helper()
	other := open(t, url, o)
	db, err := sql.Open("pgx", url+"&default_query_exec_mode=simple_protocol")
	testkit.Must(t, err)
	db.SetMaxOpenConns(8)
	t.Cleanup(func() { _ = db.Close() })
	return bysql.New(db, `"`+o.Schema+`"."`+o.Prefix+"_", other)
}

// TestConformanceBySQL: leases by SQL keep the contract, beside those of the store in Go.
func TestConformanceBySQL(t *testing.T) {
	t.Parallel() // it mostly waits
	conformBySQL(t, func(_ testing.TB, server *servertest.PostgresServer) string { return server.URL() })
}

func conformBySQL(t *testing.T, url func(testing.TB, *servertest.PostgresServer) string) {
	storetest.Run(t, &storetest.Harness{
		Parallel: 6, // each pooler has up to 20 connections
		New: func(trial testing.TB, turn time.Duration) *storetest.Subject {
			server, o := serverFor(trial), ownNames()
			at := url(trial, server)
			o.pushedTTL = turn
			trial.Cleanup(func() { checkListed(trial, server, o) })
			return &storetest.Subject{
				Open:    func() store.Store { return openBySQL(trial, at, o) },
				Restart: func() { server.Kill(); server.Restart() },
				Wipe:    func() { dropSchema(server, o) },
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew:     "it reads no clock of its process",
			storetest.Notifier: "statements of SQL do not listen; they are asked again",
		},
	})
}
