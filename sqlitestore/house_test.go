package sqlitestore

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

// The map of this module: the core, and the one client that it is about.
func TestHouse(t *testing.T) {
	lite := house.Root + "/sqlitestore/internal/lite"
	house.Check(t, []house.Room{
		{
			Dir:     ".",
			Imports: []string{house.Root, house.Root + "/store", house.Root + "/internal/backend", house.Root + "/internal/engine", house.Root + "/internal/errtype", house.Root + "/internal/pace", lite, "golang.org/x/sys/unix", "modernc.org/sqlite"},
			Tests:   []string{house.Root + "/idempotency", house.Root + "/storetest", house.Root + "/internal/failpoint", house.Root + "/internal/house"},
		},
		{Dir: "internal/lite", Imports: []string{"modernc.org/sqlite/lib", "modernc.org/libc/..."}},
	})
}
