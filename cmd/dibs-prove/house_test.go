package main

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

// The map of the program: flags around the conformance kit and the torture.
func TestHouse(t *testing.T) {
	const root = house.Root
	house.Check(t, []house.Room{{
		Dir:     ".",
		Imports: []string{root + "/internal/prove/progress", root + "/internal/quantity", root + "/stores/anystore", root + "/proof/torture", root + "/idempotency/conform"},
		Tests:   []string{root, root + "/store", root + "/idempotency", root + "/stores/memstore", root + "/internal/prove/servertest", root + "/stores/sqlitestore", root + "/internal/prove/house"},
	}})
}
