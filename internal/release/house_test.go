package main

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{
		{Dir: ".", Imports: []string{"golang.org/x/mod/modfile", "golang.org/x/mod/module", "golang.org/x/mod/semver", "golang.org/x/mod/zip", house.Root + "/internal/servertest"}, Tests: []string{house.Root + "/internal/house", "golang.org/x/tools/go/packages"}},
	})
}
