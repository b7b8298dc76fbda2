//go:build nightly

package pgstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
)

func TestConformanceBehindPgBouncer(t *testing.T) {
	t.Parallel() // it mostly waits
	storetest.Run(t, &storetest.Harness{
		Parallel: 6, // each pooler has up to 20 connections to the server
		New: func(t testing.TB, turn time.Duration) *storetest.Subject {
			// Sessions keep the plans of each schema and look through all of them with each new table,
			// so no property has the sessions of another.
			server := serverFor(t)
			url := servertest.PgBouncer(t, server, &servertest.PgBouncerOptions{Settings: loginSoon}).URL()
			o := ownNames()
			o.pushedTTL = turn
			return &storetest.Subject{
				Open:    func() store.Store { return open(t, url, o) },
				Restart: func() { server.Kill(); server.Restart() },
				Wipe:    func() { dropSchema(server, o) },
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew: "it reads no clock of its process",
		},
	})
}
