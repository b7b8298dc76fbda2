//go:build nightly

package pgstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/storetest"
)

func TestConformanceBehindPgBouncer(t *testing.T) {
	t.Parallel() // it mostly waits
	storetest.Run(t, &storetest.Harness{
		Parallel: 6, // the pooler has 60 connections to the server
		New: func(t testing.TB, turn time.Duration) *storetest.Backend {
			server, url := serverFor(t), ""
			if server == shared() {
				url = sharedPooler().URL()
			} else {
				url = servertest.PgBouncer(t, server, &servertest.PgBouncerOptions{
					Settings: []string{"server_login_retry = 1"},
				}).URL()
			}
			o := ownNames()
			o.pushedTTL = turn
			return &storetest.Backend{
				Open:    func() dibs.Store { return open(t, url, o) },
				Restart: func() { server.Kill(); server.Restart() },
				Wipe:    func() { dropSchema(server, o) },
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew: "it reads no clock of its process",
		},
	})
}
