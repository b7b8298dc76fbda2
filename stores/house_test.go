package stores

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

// TestHouse is the map of this module: the one package that knows every store.
func TestHouse(t *testing.T) {
	const root = house.Root
	house.Check(t, []house.Room{{
		Dir: ".",
		Imports: []string{
			root, root + "/store", root + "/memstore", root + "/sqlitestore", root + "/redisstore", root + "/pgstore", root + "/mysqlstore", root + "/httpstore", root + "/internal/backend", root + "/internal/product",
			"github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgconn", "github.com/jackc/pgx/v5/stdlib", "github.com/go-sql-driver/mysql", "modernc.org/sqlite",
		},
		Tests: []string{root + "/internal/failpoint", root + "/internal/house", root + "/internal/servertest"},
	}})
}
