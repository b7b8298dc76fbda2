package sqlitestore

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// The map of this module: the core, and the one client that it is about.
func TestHouse(t *testing.T) {
	lite := house.Root + "/stores/sqlitestore/internal/lite"
	house.Check(t, []house.Room{
		{
			Dir:     ".",
			Imports: []string{house.Root, house.Root + "/store", house.Root + "/store/storekit", house.Root + "/store/engine", house.Root + "/store/remote", house.Root + "/internal/errtype", house.Root + "/internal/backoff", lite, "golang.org/x/sys/unix", "modernc.org/sqlite"},
			Tests:   []string{house.Root + "/idempotency", house.Root + "/store/storetest", house.Root + "/internal/prove/failpoint", house.Root + "/internal/prove/house"},
		},
		{Dir: "internal/lite", Imports: []string{"modernc.org/sqlite/lib", "modernc.org/libc/..."}},
	})
}
