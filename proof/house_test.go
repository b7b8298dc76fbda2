package proof_test

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

// The map of the proofs, which may know everything.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{
		{Dir: ".", Tests: []string{house.Root + "/internal/house"}},
		{Dir: "bench", Imports: []string{
			house.Root, house.Root + "/idempotency", house.Root + "/memstore", house.Root + "/sqlitestore",
			"golang.org/x/sys/unix",
		}},
	})
}
