package riverjobs

import (
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/house"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// The map of this module: the core, what a job mutex is, and River on PostgreSQL. The
// stores are for tests.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir: ".",
		Imports: []string{
			house.Root, house.Root + "/store", house.Root + "/jobs",
			"github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgxpool", "github.com/riverqueue/river/...",
		},
		Tests: []string{
			house.Root + "/internal/prove/failpoint", house.Root + "/internal/prove/house", house.Root + "/internal/prove/servertest",
			"github.com/jackc/pgx/v5/pgconn", house.Root + "/stores/memstore", house.Root + "/stores/pgstore", house.Root + "/stores/redisstore",
		},
	}})
}

// TestReadme: the code in the README is that of the example, which runs.
func TestReadme(t *testing.T) {
	t.Parallel()
	readme := house.Readme(t, 100)
	example := testkit.ReadFile(t, "example_test.go")
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	runs := squeeze(string(example))
	// What the README has more, or leaves out.
	differs := regexp.MustCompile(`^(_, )?err :?= |:= pgstore\.New|err :?= |_, err := (riverjobs\.InsertTx|tx\.Exec)|riverjobs\.Tagged|func \(w \*Worker\)|return err$|\}\)?$|$`)
	in := false
	for line := range strings.Lines(readme) {
		line = squeeze(line)
		if strings.HasPrefix(line, "```") {
			in = !in
		} else if in && !differs.MatchString(line) && !strings.Contains(runs, line) {
			t.Errorf("the example does not have %q", line)
		}
	}
	for _, want := range []string{"riverjobs.InsertTx(ctx, client, tx, Message{Conversation: 7", "riverjobs.Tagged[Message](turns)", "turns.Close()", "riverjobs.Commit(ctx, job,"} {
		if !strings.Contains(readme, want) || !strings.Contains(string(example), want) {
			t.Errorf("not both have %q", want)
		}
	}
}
