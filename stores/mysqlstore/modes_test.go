//go:build nightly

package mysqlstore

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

func TestConformanceOnMySQL(t *testing.T) {
	t.Parallel() // it mostly waits
	conform(t, mysqld, servertest.MariaDBOptions{MySQL: true, NoSync: true})
}

// TestProductMySQL: MySQL is known by what it says itself.
func TestProductMySQL(t *testing.T) {
	t.Parallel()
	sqltest.FindsProduct(t, open(t, mysqld().URL(), &Options{Prefix: testkit.Own()}), "", "")
}
