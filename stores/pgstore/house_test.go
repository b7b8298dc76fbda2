package pgstore

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// The map of this module: the core, and the one client that it is about.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir:     ".",
		Imports: []string{house.Root, house.Root + "/store", house.Root + "/store/storekit", house.Root + "/store/engine", house.Root + "/store/remote", house.Root + "/internal/errtype", house.Root + "/internal/suggest", house.Root + "/internal/backoff", house.Root + "/internal/product", "github.com/jackc/pgx/v5/..."},
		Tests: []string{
			house.Root + "/store/storetest", house.Root + "/internal/prove/bysql", house.Root + "/internal/prove/failpoint", house.Root + "/internal/prove/house",
			house.Root + "/internal/prove/servertest", house.Root + "/stores/internal/sqltest", house.Root + "/internal/prove/wire",
		},
	}})
}
