package gocronlock

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// The map of this module: the core, and gocron. Its clocks and job IDs are for tests only.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir:     ".",
		Imports: []string{house.Root, house.Root + "/internal/backoff", "github.com/go-co-op/gocron/v2"},
		Tests: []string{
			house.Root + "/store", house.Root + "/stores/memstore", house.Root + "/stores/redisstore", house.Root + "/internal/prove/house", house.Root + "/internal/prove/servertest",
			"github.com/google/uuid", "github.com/jonboulle/clockwork",
		},
	}})
}
