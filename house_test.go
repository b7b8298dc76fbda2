package dibs_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// The map of the root module: nothing outside the standard library, and no
// store inside what is built on stores.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{
		{Dir: ".", Imports: []string{house.Root + "/store", house.Root + "/internal/batch", house.Root + "/internal/errtype", house.Root + "/internal/oncerecord", house.Root + "/internal/outage", house.Root + "/internal/backoff"}, Tests: []string{house.Root + "/stores/memstore", house.Root + "/internal/prove/house", house.Root + "/internal/prove/journal"}},
		{Dir: "store", Imports: []string{house.Root + "/internal/errtype"}},
		{Dir: "stores/memstore", Imports: []string{house.Root + "/store", house.Root + "/store/storekit", house.Root + "/store/engine"}, Tests: []string{house.Root + "/store/storetest"}},
		{Dir: "stores/casstore", Imports: []string{house.Root + "/store", house.Root + "/store/storekit", house.Root + "/store/engine", house.Root + "/store/remote", house.Root + "/internal/backoff"}, Tests: []string{house.Root, house.Root + "/store/storetest"}},
		{Dir: "stores/httpstore", Imports: []string{house.Root + "/store", house.Root + "/store/storekit", house.Root + "/internal/errtype", house.Root + "/internal/leaseapi", house.Root + "/internal/backoff"}, Tests: []string{house.Root + "/stores/memstore"}},
		{Dir: "store/storetest", Imports: []string{house.Root + "/store", house.Root + "/store/storetest/internal/model"}},
		{Dir: "store/storetest/internal/model", Imports: []string{house.Root + "/store"}},
		{Dir: "idempotency", Imports: []string{house.Root, house.Root + "/store", house.Root + "/internal/content", house.Root + "/internal/dialect", house.Root + "/internal/memory", house.Root + "/internal/backoff", house.Root + "/internal/slow"}, Tests: []string{house.Root + "/idempotency/retry", house.Root + "/stores/memstore", house.Root + "/internal/prove/journal"}},
		{Dir: "idempotency/retry", Imports: []string{house.Root + "/internal/content", house.Root + "/internal/backoff"}, Tests: []string{house.Root, house.Root + "/idempotency", house.Root + "/stores/memstore"}},
		{Dir: "idempotency/conform", Tests: []string{house.Root, house.Root + "/store", house.Root + "/idempotency", house.Root + "/stores/memstore"}},
		{Dir: "jobs", Imports: []string{house.Root, house.Root + "/store", house.Root + "/internal/backoff"}, Tests: []string{house.Root + "/stores/memstore", house.Root + "/internal/prove/journal"}},
		{Dir: "page", Imports: []string{house.Root, house.Root + "/store", house.Root + "/store/storekit", house.Root + "/idempotency", house.Root + "/internal/leaseapi", house.Root + "/internal/outage", house.Root + "/internal/record", house.Root + "/internal/runrecord", house.Root + "/internal/slow", house.Root + "/internal/survey"}, Tests: []string{house.Root + "/internal/oncerecord", house.Root + "/stores/memstore"}},
		{Dir: "store/storekit", Imports: []string{house.Root + "/store"}},
		{Dir: "store/engine", Imports: []string{house.Root + "/store", house.Root + "/store/storekit"}, Tests: []string{house.Root + "/store/remote", house.Root + "/store/storetest"}},
		{Dir: "store/remote", Imports: []string{house.Root + "/store", house.Root + "/store/storekit", house.Root + "/store/engine", house.Root + "/internal/backoff"}},
		{Dir: "internal/batch"},
		{Dir: "internal/content"},
		{Dir: "internal/dialect", Imports: []string{house.Root + "/internal/content"}},
		{Dir: "internal/prove/bysql", Imports: []string{house.Root + "/store", house.Root + "/store/engine"}},
		{Dir: "internal/prove/draw"},
		{Dir: "internal/errtype"},
		{Dir: "internal/prove/failpoint", Imports: []string{house.Root + "/internal/prove/testkit"}},
		{Dir: "internal/prove/house", Imports: []string{house.Root + "/internal/prove/testkit"}},
		{Dir: "internal/prove/journal", Imports: []string{house.Root + "/store"}},
		{Dir: "internal/suggest"},
		{Dir: "internal/leaseapi", Imports: []string{house.Root + "/store"}},
		{Dir: "internal/oncerecord"},
		{Dir: "internal/outage", Imports: []string{house.Root + "/store"}},
		{Dir: "internal/record", Imports: []string{house.Root + "/store", house.Root + "/idempotency", house.Root + "/internal/oncerecord", house.Root + "/internal/runrecord"}, Tests: []string{house.Root + "/internal/prove/testkit"}},
		{Dir: "internal/runrecord"},
		{Dir: "internal/memory", Tests: []string{house.Root + "/internal/prove/testkit"}},
		{Dir: "internal/backoff"},
		{Dir: "internal/product", Imports: []string{house.Root + "/store"}},
		{Dir: "internal/terminal"},
		{Dir: "internal/prove/progress", Imports: []string{house.Root + "/internal/terminal"}},
		{Dir: "internal/quantity"},
		{Dir: "internal/prove/servertest", Imports: []string{house.Root + "/internal/prove/wire"}},
		{Dir: "stores/internal/sqltest", Imports: []string{house.Root, house.Root + "/store", house.Root + "/internal/errtype", house.Root + "/internal/product", house.Root + "/internal/prove/failpoint", house.Root + "/internal/prove/servertest", house.Root + "/internal/prove/testkit", house.Root + "/internal/prove/wire"}},
		{Dir: "internal/slow", Tests: []string{house.Root + "/internal/prove/testkit"}},
		{Dir: "internal/survey", Imports: []string{house.Root + "/store"}, Tests: []string{house.Root, house.Root + "/stores/memstore"}},
		{Dir: "internal/prove/testkit"},
		{Dir: "internal/prove/wire"},
		{Dir: "internal/prove/servertest/need", Imports: []string{house.Root + "/internal/prove/servertest"}},
	})
}

// TestHouseEnglish: no text of the tree has a phrase that stops a native reader.
func TestHouseEnglish(t *testing.T) { house.English(t, ".") }

func TestModuleRequiresNothing(t *testing.T) {
	mod := testkit.ReadFile(t, "go.mod")
	if bytes.Contains(mod, []byte("require")) {
		t.Errorf("the root module requires something:\n%s", mod)
	}
}

func TestReadmeIsShort(t *testing.T) {
	readme := testkit.ReadFile(t, "README.md")
	if n := bytes.Count(readme, []byte("\n")); n > 120 {
		t.Errorf("README.md has %d lines; at most 120", n)
	}
}

// TestArchitectureListsFolders: the table of docs/design/architecture.md has every module, and
// every package of the root module that is not below another one.
func TestArchitectureListsFolders(t *testing.T) {
	page := testkit.ReadFile(t, "docs/design/architecture.md")
	var folders []string
	for _, pattern := range []string{"*/doc.go", "*/*/go.mod", "*/go.mod", "internal/*", "internal/prove/*"} {
		found, err := filepath.Glob(pattern)
		testkit.Must(t, err)
		for _, name := range found {
			if name == "internal/prove" {
				continue
			}
			folders = append(folders, strings.TrimSuffix(strings.TrimSuffix(name, "/doc.go"), "/go.mod"))
		}
	}
	for _, folder := range folders {
		if !bytes.Contains(page, []byte("\n| `"+folder+"/` ")) {
			t.Errorf("docs/design/architecture.md has no row for %s/", folder)
		}
	}
}

// TestPagesNameTests: a "go test" command on a page runs a test that is there, with the
// tag that the command gives.
func TestPagesNameTests(t *testing.T) {
	inGate, nightly := map[string]bool{}, map[string]bool{}
	pages := map[string]string{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, "_test.go") && !strings.HasSuffix(name, ".md") {
			return err
		}
		text, err := os.ReadFile(name)
		if strings.HasSuffix(name, ".md") {
			pages[name] = string(text)
			return err
		}
		tests := inGate
		if bytes.HasPrefix(text, []byte("//go:build nightly")) {
			tests = nightly
		}
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`).FindAllSubmatch(text, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	testkit.Must(t, err)
	known := 0
	for name, page := range pages {
		for _, command := range regexp.MustCompile("go test [^`\n]*").FindAllString(page, -1) {
			tests, kind, named := inGate, "Test", ""
			if strings.Contains(command, "-tags nightly") {
				tests = nightly
			}
			for _, m := range regexp.MustCompile(`-(run|bench) '?([^ ']+)`).FindAllStringSubmatch(command, -1) {
				if m[2] != "^$" {
					named, _, _ = strings.Cut(m[2], "/")
				}
				if m[1] == "bench" {
					kind = "Benchmark"
				}
			}
			if named == "" {
				continue
			}
			known++
			wanted, found := regexp.MustCompile(named), false
			for test := range tests {
				found = found || strings.HasPrefix(test, kind) && wanted.MatchString(test)
			}
			if !found {
				t.Errorf("%s: %s runs nothing", name, command)
			}
		}
	}
	if known < 5 {
		t.Errorf("only %d commands name a test", known)
	}
}
