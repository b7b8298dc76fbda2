//go:build nightly

package examples

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// mutants are the programs with their cures taken out, and what each then says.
var mutants = []struct{ name, file, old, new, says string }{
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
	{
		name: "stripe", file: "main.go", says: "an invalid amount, then a valid one: not 400, then 201",
		old: `w.Header().Set("Idempotency-Control", "no-store")`, new: "",
	},
}

// TestWithoutTheCure: with its cure taken out, each program exits with 1 and says what
// did not hold.
func TestWithoutTheCure(t *testing.T) {
	temp, replaced := t.TempDir(), map[string]string{}
	write := func(file string, b []byte) string {
		t.Helper()
		file = filepath.Join(temp, file)
		testkit.Must(t, os.WriteFile(file, b, 0o600))
		return file
	}
	for _, m := range mutants {
		file, err := filepath.Abs(filepath.Join(m.name, m.file))
		testkit.Must(t, err)
		source := read(t, file)
		if strings.Count(source, m.old) != 1 {
			t.Fatalf("%s does not have %q once", file, m.old)
		}
		replaced[file] = write(m.name+".go", []byte(strings.Replace(source, m.old, m.new, 1)))
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replaced})
	testkit.Must(t, err)
	from, err := build("mutants", "-overlay", write("overlay.json", overlay))
	testkit.Must(t, err)
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			out, _, code := run(t, filepath.Join(from, m.name), "DATABASE_URL=", "TMPDIR="+t.TempDir())
			if code != 1 || !strings.Contains(out, m.says) {
				t.Errorf("it ends with %d and prints\n%s\nnot %q", code, out, m.says)
			}
		})
	}
}

// The leases of these, a few seconds long, have to be alive while a job runs.
func init() { wanted = append(wanted, "conversation", "redelivery") }

// TestOnPostgres: as TestExamples, on PostgreSQL.
func TestOnPostgres(t *testing.T) {
	for _, name := range wanted {
		t.Run(name+" on PostgreSQL", func(t *testing.T) {
			t.Parallel()
			checkExample(t, name, "PostgreSQL", postgres().URL())
		})
	}
	t.Cleanup(func() { checkSchemas(t) })
}
