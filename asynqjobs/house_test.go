package asynqjobs

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
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
			house.Root + "/store", house.Root + "/memstore", house.Root + "/redisstore",
			house.Root + "/internal/failpoint", house.Root + "/internal/house", house.Root + "/internal/servertest",
		},
	}})
}
