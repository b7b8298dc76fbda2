package mysqlstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/storetest"
)

// On a busy machine a call may take its time.
const (
	short    = 400 * time.Millisecond
	late     = 200 * time.Millisecond
	parallel = 6
)

func TestConformance(t *testing.T) {
	for name, kind := range map[string]struct {
		shared func() *servertest.MariaDBServer
		own    servertest.MariaDBOptions
	}{
		"MariaDB": {shared: mariadb},
		"MySQL":   {shared: mysqld, own: servertest.MariaDBOptions{MySQL: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			storetest.Run(t, &storetest.Harness{
				Short: short, Late: late, Parallel: parallel,
				New: func(t testing.TB) *storetest.Backend {
					server, prefix := kind.shared, ownPrefix()
					if restarts(t) {
						own := servertest.MariaDB(t, &kind.own)
						server = func() *servertest.MariaDBServer { return own }
					}
					return &storetest.Backend{
						Open:    func() dibs.Store { return open(t, server().URL(), &Options{Prefix: prefix}) },
						Restart: func() { server().Kill(); server().Restart() },
						Wipe:    func() { drop(server(), prefix) },
					}
				},
				Lacks: map[storetest.Feature]string{
					storetest.Skew: "it reads no clock of its process",
				},
			})
		})
	}
}
