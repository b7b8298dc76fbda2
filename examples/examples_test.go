package examples

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/pace"
	"github.com/dibs-go/dibs/internal/servertest"
)

// scope owns the server that the tests share.
var scope = servertest.NewScope()

func TestMain(m *testing.M) {
	flag.Parse()
	// The programs mostly wait.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	code := m.Run()
	scope.Close()
	os.Exit(code)
}

var postgres = sync.OnceValue(func() *servertest.PostgresServer {
	return servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true, MaxConnections: 200})
})

// TestExamples: each program shows what the README says, the broken half and the
// cured one, and leaves nothing behind.
func TestExamples(t *testing.T) {
	url := postgres().URL()
	for name, want := range shown(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, c := range []struct{ database, url string }{{"SQLite", ""}, {"PostgreSQL", url}} {
				t.Run(c.database, func(t *testing.T) {
					t.Parallel()
					temp := t.TempDir()
					want := strings.Replace(want, "on SQLite", "on "+c.database, 1)
					pace.Retry(t, 250*time.Millisecond, func() error { // their leases last a second
						out, code := run(t, []string{"TMPDIR=" + temp, "DATABASE_URL=" + c.url}, "./examples/"+name)
						if code != 0 || !shows(want, out) {
							return fmt.Errorf("it ends with %d and prints\n%s\nthe README shows\n%s", code, out, want)
						}
						return nil
					})
					left, err := os.ReadDir(temp)
					if err != nil || len(left) > 0 {
						t.Errorf("it leaves %v behind, %v", left, err)
					}
				})
			}
		})
	}
	t.Cleanup(func() {
		if left := postgres().Query("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'dibs%'"); len(left) > 0 {
			t.Errorf("the schemas %v are left behind", left)
		}
	})
}

// TestWithoutTheCure: with its cure taken out, each program ends with 1 and says what
// did not hold.
func TestWithoutTheCure(t *testing.T) {
	for _, c := range []struct{ name, file, old, new, says string }{
		{
			name: "conversation", file: "main.go", says: "not one conversation, and every event once, alone and in its turn",
			old: "jobs.Handle(mutex, describe, c.handle)", new: "func(ctx context.Context, j *job) error { _ = describe(j); return c.handle(ctx, j) }",
		},
		{
			name: "counter", file: "main.go", says: "row lock: the counter is at 1, not 20",
			old: "_ *sql.Tx, c *counter) error {\n\t\t\tc.value++", new: "_ *sql.Tx, c *counter) error {\n\t\t\tc.value = 1",
		},
		{
			name: "invoice-number", file: "main.go", says: "the numbers are not 1, 2, 3",
			old: `numbers.Next(ctx, tx, "invoice 2026")`, new: `7, nil`,
		},
		{
			name: "lesson-session", file: "main.go", says: "not one room, one row and a true 204 for all",
			old: "client: client, skip: 409", new: "skip: 409",
		},
		{
			name: "payments", file: "server.go", says: "not one entry and its answer",
			old: "once.Wrap(http.HandlerFunc(p.together))", new: "(func(any) http.HandlerFunc { return p.apart })(once)",
		},
		{
			name: "redelivery", file: "consumer.go", says: "not every message once, in the order of its conversation",
			old: `if way == "mutex" {`, new: `if way == "" {`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file, err := filepath.Abs(filepath.Join(c.name, c.file))
			if err != nil {
				t.Fatal(err)
			}
			source := read(t, file)
			if strings.Count(source, c.old) != 1 {
				t.Fatalf("%s does not have %q once", file, c.old)
			}
			broken, overlay := filepath.Join(t.TempDir(), "broken.go"), filepath.Join(t.TempDir(), "overlay.json")
			write(t, broken, []byte(strings.Replace(source, c.old, c.new, 1)))
			replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: broken}})
			if err != nil {
				t.Fatal(err)
			}
			write(t, overlay, replace)
			out, code := run(t, []string{"DATABASE_URL="}, "-overlay", overlay, "./examples/"+c.name)
			if code != 1 || !strings.Contains(out, c.says) {
				t.Errorf("it ends with %d and prints\n%s\nnot %q", code, out, c.says)
			}
		})
	}
}

// TestUnreachable: a database that is not there is an error, and nothing is shown.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"postgres://127.0.0.1:1/none": "counter: pgstore: the server cannot be reached",
		"mysql:somewhere":             "counter: DATABASE_URL has to be like postgres://user@host/database",
	} {
		if out, code := run(t, []string{"DATABASE_URL=" + url}, "./examples/counter"); code != 1 || !strings.HasPrefix(out, says) {
			t.Errorf("with %s it ends with %d and prints\n%s\nnot %q", url, code, out, says)
		}
	}
}

// TestReadme: the README's table has every program, and its command.
func TestReadme(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	var programs, listed, printed []string
	for _, file := range files {
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

// run runs a program from the top, as the README says, and returns what it printed, and
// its exit code.
func run(t *testing.T, env []string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"run"}, args...)...)
	cmd.Dir, cmd.Env = "..", append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
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
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, file string, b []byte) {
	t.Helper()
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
