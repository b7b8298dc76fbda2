package asynqjobs

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// The map of this module: the core, what a job mutex is, the queue, and the queue's
// own Redis client.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir: ".",
		Imports: []string{
			house.Root, house.Root + "/jobs",
			"github.com/hibiken/asynq", "github.com/redis/go-redis/v9",
		},
		Tests: []string{
			house.Root + "/store", house.Root + "/stores/memstore", house.Root + "/stores/redisstore",
			house.Root + "/internal/prove/failpoint", house.Root + "/internal/prove/house", house.Root + "/internal/prove/servertest",
		},
	}})
}

// TestReadme: its code is that of the example, and each promise of the table has its test.
func TestReadme(t *testing.T) {
	t.Parallel()
	house.Readme(t, 80)
	house.ReadmeRuns(t)
}
