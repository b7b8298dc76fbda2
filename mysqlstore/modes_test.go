//go:build nightly

package mysqlstore

import (
	"testing"

	"github.com/dibs-go/dibs/internal/servertest"
)

func TestConformanceOnMySQL(t *testing.T) {
	t.Parallel() // it mostly waits
	conform(t, mysqld, servertest.MariaDBOptions{MySQL: true, NoSync: true})
}
