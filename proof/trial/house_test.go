package main

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

// The map of the trial: one room, which knows the peers.
func TestHouse(t *testing.T) {
	const root = house.Root
	house.Check(t, []house.Room{{
		Dir: ".",
		Imports: []string{
			root, root + "/stores", root + "/proof/fault", root + "/proof/target", root + "/proof/torture", root + "/internal/servertest",
			// The peers, and what they are built on.
			"github.com/bsm/redislock", "github.com/go-redsync/redsync/v4/...", "github.com/redis/go-redis/v9",
			"github.com/redis/rueidis", "github.com/redis/rueidis/rueidislock", "cirello.io/pglock", "github.com/lib/pq",
			"github.com/jackc/pgx/v5/...", "github.com/go-sql-driver/mysql",
			"go.etcd.io/etcd/client/v3/...", "go.etcd.io/etcd/server/v3/embed", "go.uber.org/zap",
		},
		Tests: []string{root + "/internal/house", root + "/internal/wire", root + "/proof/check", root + "/proof/history"},
	}})
}
