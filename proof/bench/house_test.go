package main

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

// The map of the benchmarks, which are one room.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{
		{Dir: ".", Imports: []string{
			house.Root, house.Root + "/store", house.Root + "/idempotency", house.Root + "/memstore", house.Root + "/sqlitestore",
			house.Root + "/redisstore", house.Root + "/pgstore", house.Root + "/mysqlstore",
			house.Root + "/sqllock", house.Root + "/jobs", house.Root + "/dibsotel", "go.opentelemetry.io/otel/...", "github.com/prometheus/client_golang/prometheus", house.Root + "/riverjobs", house.Root + "/asynqjobs",
			"github.com/riverqueue/river/...", "github.com/hibiken/asynq", house.Root + "/internal/draw", house.Root + "/internal/progress", house.Root + "/internal/servertest",
			"github.com/redis/rueidis", "github.com/jackc/pgx/v5/...", "github.com/go-sql-driver/mysql",
			// The peers, and what they are built on.
			"github.com/bsm/redislock", "github.com/go-redsync/redsync/v4/...", "github.com/redis/go-redis/v9",
			"github.com/redis/rueidis/rueidislock", "cirello.io/pglock", "github.com/lib/pq",
		}, Tests: []string{house.Root + "/internal/house", "modernc.org/sqlite"}},
	})
}
