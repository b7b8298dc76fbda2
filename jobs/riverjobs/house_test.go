package riverjobs

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// The map of this module: the core, what a job mutex is, and River on PostgreSQL. The
// stores are for tests.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir: ".",
		Imports: []string{
			house.Root, house.Root + "/store", house.Root + "/jobs",
			"github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgxpool", "github.com/riverqueue/river/...",
		},
		Tests: []string{
			house.Root + "/internal/prove/failpoint", house.Root + "/internal/prove/house", house.Root + "/internal/prove/servertest",
			"github.com/jackc/pgx/v5/pgconn", house.Root + "/stores/memstore", house.Root + "/stores/pgstore", house.Root + "/stores/redisstore",
		},
	}})
}
