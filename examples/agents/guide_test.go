package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// dir has what the tests install.
var dir string

func TestMain(m *testing.M) {
	dibs, err := servertest.Dibs()
	if err == nil {
		dir, err = os.MkdirTemp("", "dibs-agents-*")
	}
	if err != nil {
		panic(err)
	}
	os.Setenv("PATH", filepath.Dir(dibs)+string(os.PathListSeparator)+os.Getenv("PATH"))
	testkit.Main(m, nil, func() { os.RemoveAll(dir) })
}

// TestGuide: the program prints what the guide shows, and the guide's code is the program's.
func TestGuide(t *testing.T) {
	guide := string(testkit.ReadFile(t, "../../docs/guides/agents.md"))
	shown := regexp.MustCompile("(?s)```console\n\\$ go run ./examples/agents\n(.*?)```").FindStringSubmatch(guide)
	if shown == nil {
		t.Fatal("the guide does not show the program")
	}
	var out strings.Builder
	testkit.Must(t, run(t.Context(), &out))
	if out.String() != shown[1] {
		t.Errorf("the program prints\n%s\nthe guide shows\n%s", &out, shown[1])
	}
	program := string(testkit.ReadFile(t, "shop.go")) + string(testkit.ReadFile(t, "agent.go"))
	code := regexp.MustCompile("(?s)```golang\n(.*?)```").FindAllStringSubmatch(guide, -1)
	for _, block := range code[:2] {
		if !strings.Contains(program, block[1]) {
			t.Errorf("the guide has code that is not the program's:\n%s", block[1])
		}
	}
}
