//go:build nightly && unix

package command_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestMigrationsBehindPgBouncer: through a PgBouncer in transaction mode two sessions get one
// advisory lock, and the migrations of docs/guides/deploys.md run one at a time.
func TestMigrationsBehindPgBouncer(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, nil)
	one := servertest.PgBouncer(t, server, &servertest.PgBouncerOptions{PoolSize: 1})
	for session := range 2 { // each Query has a session of its own
		if got := one.Query("SELECT pg_try_advisory_lock(42)")[0][0]; got != "t" {
			t.Errorf("the lock is %s to session %d", got, session)
		}
	}
	var migrations block
	for _, b := range blocks(t, "guides/deploys.md") {
		if strings.Contains(b.code, "migrate.sh") && b.language == "sh" {
			migrations = b
		}
	}
	b := newBench(t)
	pooler := servertest.PgBouncer(t, server, nil)
	b.store = pooler.URL()
	b.withTables(t)
	here := strings.Replace(migrations.code, "sqlite:$PWD/dibs.db", "'"+pooler.URL()+"'", 1)
	if here == migrations.code {
		t.Fatalf("the page has no store:\n%s", here)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", here)
	cmd.Dir, cmd.Env = b.dir, append(os.Environ(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	got, err := cmd.CombinedOutput()
	testkit.Must(t, err)
	if string(got) != migrations.output {
		t.Errorf("it prints\n%s\nthe page shows\n%s", got, migrations.output)
	}
}
