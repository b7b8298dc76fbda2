package main

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
)

func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{
		{Dir: ".", Imports: []string{"golang.org/x/mod/modfile", "golang.org/x/mod/module", "golang.org/x/mod/semver", "golang.org/x/mod/zip", house.Root + "/internal/prove/servertest"}, Tests: []string{house.Root + "/internal/prove/house", "golang.org/x/tools/go/packages"}},
	})
}
