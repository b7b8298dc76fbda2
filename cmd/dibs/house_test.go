package main

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

// The map of the program: only stores knows the backends, and the command line
// knows the rest.
func TestHouse(t *testing.T) {
	const (
		root     = house.Root
		internal = root + "/cmd/dibs/internal"
		cobra    = "github.com/spf13/cobra"
		pflag    = "github.com/spf13/pflag"
		yaml     = "github.com/goccy/go-yaml/..."
	)
	memory, sqlite := root+"/memstore", root+"/sqlitestore"
	house.Check(t, []house.Room{
		{Dir: ".", Imports: []string{internal + "/command"}, Tests: []string{internal + "/foreign", root + "/internal/house"}},
		{
			Dir: "internal/command",
			Imports: []string{
				root, root + "/idempotency", memory, cobra, pflag,
				internal + "/demo", internal + "/proxy", internal + "/stores",
			},
			Tests: []string{sqlite},
		},
		{Dir: "internal/demo"},
		{Dir: "internal/foreign"},
		{Dir: "internal/framing"},
		{
			Dir:     "internal/proxy",
			Imports: []string{root, root + "/idempotency", internal + "/framing", internal + "/upstream", pflag, yaml},
			Tests:   []string{memory, sqlite},
		},
		{Dir: "internal/stores", Imports: []string{root, memory, sqlite}},
		{Dir: "internal/upstream", Imports: []string{root}},
	})
}
