package anystore

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// TestHouse is the map of this module: the one package that knows every store.
func TestHouse(t *testing.T) {
	const root = house.Root
	house.Check(t, []house.Room{{
		Dir: ".",
		Imports: []string{
			root, root + "/store", root + "/stores/memstore", root + "/stores/sqlitestore", root + "/stores/redisstore", root + "/stores/pgstore", root + "/stores/mysqlstore", root + "/stores/httpstore", root + "/stores/casstore", root + "/stores/casstore/s3", root + "/store/storekit", root + "/internal/product",
			"github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgconn", "github.com/jackc/pgx/v5/stdlib", "github.com/go-sql-driver/mysql", "modernc.org/sqlite",
		},
		Tests: []string{root + "/internal/prove/failpoint", root + "/internal/prove/house", root + "/internal/prove/servertest"},
	}})
}
