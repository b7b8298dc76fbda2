package sqllock

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// The map of this module: the core, and the two clients that it is about. SQLite's
// is for tests only: an application brings its own.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir:     ".",
		Imports: []string{house.Root, house.Root + "/store", house.Root + "/internal/backoff", house.Root + "/internal/product", "github.com/jackc/pgx/v5/...", "github.com/go-sql-driver/mysql"},
		Tests: []string{
			house.Root + "/internal/prove/failpoint", house.Root + "/internal/prove/house", house.Root + "/internal/prove/servertest", "modernc.org/sqlite/...",
		},
	}})
}
