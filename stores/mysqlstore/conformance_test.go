package mysqlstore

import (
	"path"
	"slices"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel() // it mostly waits
	conform(t, mariadb, servertest.MariaDBOptions{NoSync: true})
}

// conform checks all properties on the server that all share. Those that restart
// theirs have servers of their own.
func conform(t *testing.T, shared func() *servertest.MariaDBServer, own servertest.MariaDBOptions) {
	storetest.Run(t, &storetest.Harness{
		New: func(t testing.TB, turn time.Duration) *storetest.Subject {
			var server *servertest.MariaDBServer
			if restarts(t) {
				server = servertest.MariaDB(t, &own)
			} else {
				server = shared()
			}
			o := &Options{Prefix: testkit.Own(), pushedTTL: turn}
			return &storetest.Subject{
				Open:    func() store.Store { return open(t, server.URL(), o) },
				Restart: func() { server.Kill(); server.Restart() },
				Wipe:    func() { drop(server, o.Prefix) },
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew: "it reads no clock of its process",
		},
	})
}

// restarts reports whether the property that is tried restarts its backend.
func restarts(t testing.TB) bool {
	return slices.ContainsFunc(storetest.Properties(), func(p storetest.Property) bool {
		return p.Name == path.Base(t.Name()) && slices.Contains(p.Needs, storetest.Restart)
	})
}
