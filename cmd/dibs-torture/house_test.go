package main

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

// The map of the program: flags around the torture.
func TestHouse(t *testing.T) {
	const root = house.Root
	house.Check(t, []house.Room{{
		Dir:     ".",
		Imports: []string{root + "/internal/progress", root + "/internal/quantity", root + "/stores", root + "/proof/torture"},
		Tests:   []string{root + "/store", root + "/sqlitestore", root + "/internal/house"},
	}})
}
