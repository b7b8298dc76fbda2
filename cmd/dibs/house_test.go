package main

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// The map of the program: the command line knows the rest, and only stores,
// a module beside this one, knows the stores.
func TestHouse(t *testing.T) {
	const (
		root     = house.Root
		internal = root + "/cmd/dibs/internal"
		cobra    = "github.com/spf13/cobra"
		pflag    = "github.com/spf13/pflag"
		yaml     = "github.com/goccy/go-yaml/..."
		unix     = "golang.org/x/sys/unix"

		prometheus = "github.com/prometheus/client_golang/prometheus"
	)
	memory, sqlite, redis, postgres := root+"/stores/memstore", root+"/stores/sqlitestore", root+"/stores/redisstore", root+"/stores/pgstore"
	maria, server := root+"/stores/mysqlstore", root+"/internal/prove/servertest"
	house.Check(t, []house.Room{
		{Dir: ".", Imports: []string{internal + "/command"}, Tests: []string{
			root, root + "/stores/httpstore", root + "/idempotency", root + "/stores/anystore", root + "/internal/prove/failpoint", root + "/internal/prove/house", root + "/internal/prove/wire", server, root + "/idempotency/conform",
		}},
		{
			Dir: "internal/command",
			Imports: []string{
				root, root + "/store", root + "/idempotency", memory, cobra, pflag,
				internal + "/demo", internal + "/metrics", internal + "/process", internal + "/proxy", internal + "/serve", internal + "/server", root + "/stores/anystore",
				root + "/idempotency/conform", root + "/internal/dialect", root + "/internal/memory", root + "/internal/suggest", root + "/internal/oncerecord", root + "/internal/terminal", root + "/internal/quantity", root + "/internal/record", root + "/internal/runrecord", root + "/internal/survey", root + "/page",
			},
			Tests: []string{sqlite, unix, redis, postgres, maria, server, root + "/internal/prove/failpoint", yaml},
		},
		{Dir: "internal/certificate", Imports: []string{internal + "/missing"}},
		{Dir: "internal/credential", Imports: []string{root, internal + "/missing"}},
		{Dir: "internal/demo", Imports: []string{root + "/internal/backoff"}},
		{Dir: "internal/metrics", Imports: []string{root + "/dibsotel", root + "/internal/survey", internal + "/serve", prometheus, prometheus + "/collectors", prometheus + "/promhttp", "github.com/prometheus/client_model/go", "go.opentelemetry.io/otel/attribute", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/exporters/prometheus", "go.opentelemetry.io/otel/sdk/metric", "go.opentelemetry.io/otel/sdk/metric/exemplar"}, Tests: []string{root, memory, root + "/idempotency", root + "/internal/prove/testkit", root + "/jobs", root + "/store"}},
		{Dir: "internal/missing"},
		{Dir: "internal/process", Imports: []string{unix}},
		{
			Dir:     "internal/proxy",
			Imports: []string{root, root + "/store", root + "/idempotency", root + "/internal/memory", root + "/internal/suggest", root + "/internal/outage", root + "/internal/quantity", root + "/internal/slow", root + "/internal/survey", root + "/page", internal + "/certificate", internal + "/credential", internal + "/missing", internal + "/server", internal + "/upstream", pflag, yaml},
			Tests:   []string{memory, server},
		},
		{
			Dir:     "internal/serve",
			Imports: []string{root, root + "/store", root + "/page", internal + "/credential", internal + "/server", root + "/internal/batch", root + "/internal/leaseapi", root + "/internal/memory", root + "/internal/outage", root + "/internal/backoff", root + "/internal/quantity", root + "/internal/slow", root + "/internal/survey", unix},
			Tests:   []string{root + "/stores/httpstore", root + "/internal/errtype", server, root + "/internal/prove/testkit", root + "/internal/prove/wire", memory, root + "/stores/anystore", root + "/store/storetest"},
		},
		{
			Dir:     "internal/server",
			Imports: []string{root + "/store", root + "/store/storekit", root + "/page", internal + "/certificate", internal + "/credential", root + "/internal/outage", root + "/internal/quantity"},
			Tests:   []string{memory},
		},
		{Dir: "internal/upstream", Imports: []string{root}, Tests: []string{root + "/internal/prove/failpoint", server}},
	})
}

// TestProductionBinary: the program contains nothing that breaks a store, and no checker of histories.
func TestProductionBinary(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	testkit.Must(t, err)
	for dep := range strings.Lines(string(out)) {
		if strings.Contains(dep, "porcupine") || strings.HasPrefix(dep, house.Root+"/proof") {
			t.Errorf("the program contains %s", dep)
		}
	}
}

// replaces matches a call that replaces the process by another program.
var replaces = regexp.MustCompile(`\b(syscall|unix)\.Exec\b`)

// TestNothingReplacesTheProcess: a test binary that is replaced looks as if its tests passed.
func TestNothingReplacesTheProcess(t *testing.T) {
	var found []string
	testkit.Must(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && replaces.Match(testkit.ReadFile(t, path)) {
			found = append(found, path)
		}
		return err
	}))
	if len(found) > 0 {
		t.Errorf("the process is replaced in %q", found)
	}
}
