//go:build nightly && unix

package servertest

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestGalera: both nodes take writes, and each has what the other has written.
func TestGalera(t *testing.T) {
	t.Parallel()
	nodes := Galera(t, &MariaDBOptions{NoSync: true})
	nodes[0].Query("CREATE TABLE t (id INT PRIMARY KEY) ENGINE = InnoDB")
	for i, node := range nodes {
		if rows := node.Query("SELECT @@wsrep_on"); rows[0][0] != "1" {
			t.Errorf("node %d: wsrep_on is %v", i, rows)
		}
		node.Query("SET wsrep_sync_wait = 15; INSERT INTO t SELECT COUNT(*) FROM t")
	}
	for i, node := range nodes {
		testkit.Eventually(t, "both rows", func() bool { return node.Query("SELECT COUNT(*) FROM t")[0][0] == "2" })
		if size := node.Query("SHOW STATUS LIKE 'wsrep_cluster_size'")[0][1]; size != "2" {
			t.Errorf("node %d: the cluster has %s nodes", i, size)
		}
	}
}
