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

// TestReadme: what the README says of is there, and it is short.
func TestReadme(t *testing.T) {
	t.Parallel()
	house.Readme(t, 150,
		"`Advisory`", "`LockTx`", "`RubyKey`", "`Named`", "`Row`", "`Sequence`", "`FenceCheck`", "`Transact`",
		"`ErrDeadlock`", "`ErrIsolation`", "`ErrPooler`", "`ErrServer`",
	)
}
