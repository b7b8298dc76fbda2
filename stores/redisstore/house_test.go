package redisstore

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// The map of this module: the core, and the one client that it is about.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir:     ".",
		Imports: []string{house.Root + "/store", house.Root + "/store/storekit", house.Root + "/internal/errtype", house.Root + "/internal/backoff", house.Root + "/internal/product", "github.com/redis/rueidis"},
		Tests: []string{
			house.Root, house.Root + "/store/storetest", house.Root + "/internal/prove/failpoint", house.Root + "/internal/prove/house",
			house.Root + "/internal/prove/servertest", house.Root + "/internal/prove/wire", house.Root + "/stores/internal/sqltest",
		},
	}})
}
