package pgstore

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

// The map of this module: the core, and the one client that it is about.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir:     ".",
		Imports: []string{house.Root, house.Root + "/store", house.Root + "/internal/backend", house.Root + "/internal/engine", house.Root + "/internal/errtype", house.Root + "/internal/nearest", house.Root + "/internal/pace", house.Root + "/internal/product", "github.com/jackc/pgx/v5/..."},
		Tests: []string{
			house.Root + "/storetest", house.Root + "/internal/failpoint", house.Root + "/internal/house",
			house.Root + "/internal/servertest", house.Root + "/internal/sqltest", house.Root + "/internal/wire",
		},
	}})
}
