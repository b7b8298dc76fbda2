package dibs_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

// The map of the root module: nothing outside the standard library, and no
// store inside what is built on stores.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{
		{Dir: ".", Tests: []string{house.Root + "/memstore", house.Root + "/internal/house", house.Root + "/internal/journal"}},
		{Dir: "memstore", Imports: []string{house.Root}, Tests: []string{house.Root + "/storetest"}},
		{Dir: "storetest", Imports: []string{house.Root, house.Root + "/storetest/internal/model"}},
		{Dir: "storetest/internal/model", Imports: []string{house.Root}},
		{Dir: "idempotency", Imports: []string{house.Root, house.Root + "/internal/linger"}, Tests: []string{house.Root + "/memstore", house.Root + "/internal/journal"}},
		{Dir: "jobs", Imports: []string{house.Root}, Tests: []string{house.Root + "/memstore", house.Root + "/internal/journal"}},
		{Dir: "internal/failpoint"},
		{Dir: "internal/house"},
		{Dir: "internal/journal", Imports: []string{house.Root}},
		{Dir: "internal/linger"},
		{Dir: "internal/servertest"},
		{Dir: "internal/sqltest", Imports: []string{house.Root, house.Root + "/internal/failpoint", house.Root + "/internal/servertest"}},
		{Dir: "internal/servertest/need", Imports: []string{house.Root + "/internal/servertest"}},
	})
}

func TestModuleRequiresNothing(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(mod, []byte("require")) {
		t.Errorf("the root module requires something:\n%s", mod)
	}
}

func TestReadmeIsShort(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(readme, []byte("\n")); n > 150 {
		t.Errorf("README.md has %d lines; at most 150", n)
	}
}
