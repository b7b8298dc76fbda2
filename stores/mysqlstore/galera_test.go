//go:build nightly

package mysqlstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestGaleraIsRefused: no store opens on a node of a Galera cluster, and none makes its tables there.
func TestGaleraIsRefused(t *testing.T) {
	t.Parallel()
	for i, node := range servertest.Galera(t, &servertest.MariaDBOptions{NoSync: true}) {
		o := &Options{Prefix: testkit.Own(), Migrate: true}
		s, err := Open(t.Context(), node.URL(), o)
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "it is a Galera cluster: each node has its own row locks") {
			t.Errorf("node %d: %v, %v", i, s, err)
		}
		if rows := node.Query("SHOW TABLES LIKE '" + o.Prefix + "%'"); len(rows) > 0 {
			t.Errorf("node %d has the tables %v", i, rows)
		}
	}
}

// TestServerOfNoCluster: a server whose configuration could make it a node, and that has joined no
// cluster, is a server like any other.
func TestServerOfNoCluster(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true, Settings: []string{"wsrep_on = ON"}})
	s, err := Open(t.Context(), server.URL(), &Options{Migrate: true})
	testkit.Must(t, err)
	testkit.Check(t, s.Close())
}
