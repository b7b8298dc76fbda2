package examples

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// scope owns the server that the tests share, and dir the programs.
var (
	scope = servertest.NewScope()
	dir   string
)

func TestMain(m *testing.M) {
	var err error
	if dir, err = os.MkdirTemp("", "dibs-examples-*"); err != nil {
		panic(err)
	}
	testkit.Main(m, nil, scope.Close, func() { os.RemoveAll(dir) })
}

var postgres = sync.OnceValue(func() *servertest.PostgresServer {
	return servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true, MaxConnections: 200})
})

// wanted are the programs that the tests run. The nightly tests add the others, whose
// leases have to be alive for a while.
var wanted = []string{"counter", "invoice-number", "lesson-session", "payment-provider", "payments", "stripe"}

// built has the wanted programs, each built once.
var built = sync.OnceValues(func() (string, error) { return build("built") })

// sameFlags are those of this test binary, so that the build cache has what a program
// imports. Of several -gcflags it has the last one.
func sameFlags() (flags []string) {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "-race" || s.Key == "-gcflags" {
				flags = append(flags, s.Key+"="+s.Value)
			}
		}
	}
	return flags
}

// build builds the wanted programs into a folder of that name and returns its path.
func build(name string, flags ...string) (string, error) {
	to := filepath.Join(dir, name)
	args := append([]string{"build", "-o", to + "/", "-ldflags=-s -w"}, flags...)
	args = append(args, sameFlags()...)
	for _, program := range wanted {
		args = append(args, "./examples/"+program)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	return to, cmd.Run()
}

// TestExamples: each program shows what the README says, the broken half and the
// cured one, and leaves nothing behind. The nightly tests also run all of them on
// PostgreSQL.
func TestExamples(t *testing.T) {
	for _, name := range wanted {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkExample(t, name, "SQLite", "")
		})
	}
	t.Run("counter on PostgreSQL", func(t *testing.T) {
		t.Parallel()
		checkExample(t, "counter", "PostgreSQL", postgres().URL())
	})
	t.Cleanup(func() { checkSchemas(t) })
}

// checkExample runs a program on a database.
func checkExample(t *testing.T, name, database, url string) {
	t.Helper()
	from, err := built()
	testkit.Must(t, err)
	temp := t.TempDir()
	want := strings.Replace(shown(t)[name], "on SQLite", "on "+database, 1)
	out, log, code := run(t, filepath.Join(from, name), "TMPDIR="+temp, "DATABASE_URL="+url)
	if code != 0 || !shows(want, out) {
		t.Errorf("it ends with %d and prints\n%s\nthe README shows\n%s\nit logs\n%s", code, out, want, log)
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("it leaves %v behind, %v", left, err)
	}
}

// checkSchemas: no program leaves its schema behind.
func checkSchemas(t *testing.T) {
	t.Helper()
	if left := postgres().Query("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'dibs%'"); len(left) > 0 {
		t.Errorf("the schemas %v are left behind", left)
	}
}

// TestUnreachable: a database that is not there is an error, and nothing is shown.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	from, err := built()
	testkit.Must(t, err)
	for url, says := range map[string]string{
		"postgres://127.0.0.1:1/none": "counter: pgstore: the server cannot be reached",
		"mysql:somewhere":             "counter: DATABASE_URL has to be like postgres://user@host/database",
	} {
		if _, out, code := run(t, filepath.Join(from, "counter"), "DATABASE_URL="+url); code != 1 || !strings.HasPrefix(out, says) {
			t.Errorf("with %s it ends with %d and prints\n%s\nnot %q", url, code, out, says)
		}
	}
}

// TestReadme: the README's table has every program of the module, and its command.
func TestReadme(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*/main.go")
	testkit.Must(t, err)
	var programs, listed, printed []string
	for _, file := range files {
		if filepath.Dir(file) == "agents" {
			continue // its guide shows it, and its own tests run it
		}
		programs = append(programs, filepath.Dir(file))
	}
	for _, m := range regexp.MustCompile("(?m)^\\| \\[([a-z-]+)\\]\\(([a-z-]+)/main.go\\) \\|.*\\| `go run ./examples/([a-z-]+)` \\|").FindAllStringSubmatch(read(t, "README.md"), -1) {
		if m[1] != m[2] || m[1] != m[3] {
			t.Errorf("a row of the README names %q", m[1:])
		}
		listed = append(listed, m[1])
	}
	for name := range shown(t) {
		printed = append(printed, name)
	}
	slices.Sort(listed)
	slices.Sort(printed)
	if !slices.Equal(programs, listed) || !slices.Equal(programs, printed) {
		t.Errorf("there are %q, the README lists %q and shows %q", programs, listed, printed)
	}
}

// run runs a program and returns what it printed, what it logged, and its exit code. A program that
// hangs is killed.
func run(t *testing.T, program string, env ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), env...)
	hang := time.AfterFunc(testkit.Limit, func() { _ = cmd.Cancel() })
	defer hang.Stop()
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}

// shown returns what the README says that each program prints.
func shown(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, m := range regexp.MustCompile("(?ms)^## ([a-z-]+)\n\n```text\n(.*?)^```$").FindAllStringSubmatch(read(t, "README.md"), -1) {
		found[m[1]] = m[2]
	}
	return found
}

// shows reports whether got is what the README shows.
func shows(want, got string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", "[0-9]+")
	return regexp.MustCompile("^" + pattern + "$").MatchString(got)
}

func read(t *testing.T, file string) string {
	t.Helper()
	return string(testkit.ReadFile(t, file))
}

// TestGuides: the code of a guide is that of its package.
func TestGuides(t *testing.T) {
	t.Parallel()
	for guide, of := range map[string]struct {
		folder string
		pieces int
	}{"guides/frameworks.md": {"frameworks", 3}, "guides/testing-your-code.md": {"invoices", 4}, "guides/payment-provider.md": {"payment-provider", 1}, "reference/http.md": {"stripe", 1}} {
		files, err := filepath.Glob(of.folder + "/*.go")
		testkit.Must(t, err)
		var source strings.Builder
		for _, file := range files {
			source.WriteString(read(t, file))
		}
		blocks := regexp.MustCompile("(?ms)^```golang\n(.*?)^```$").FindAllStringSubmatch(read(t, "../docs/"+guide), -1)
		if len(blocks) != of.pieces {
			t.Errorf("%s has %d pieces of code; %s has %d", guide, len(blocks), of.folder, of.pieces)
		}
		for _, b := range blocks {
			if !strings.Contains(source.String(), b[1]) {
				t.Errorf("this piece of %s is not in %s:\n%s", guide, of.folder, b[1])
			}
		}
	}
}
