//go:build unix

package command_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestMigrate: a file is created once, with a message. A store without tables has nothing to
// migrate.
func TestMigrate(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		b := newBench(t)
		b.says(t, 0, "dibs.db is created; a program that uses the store does this by itself", "", "migrate")
		b.says(t, 0, "dibs.db is up to date; ", "", "migrate")
		b.says(t, 0, "the first program that uses the store creates the file", "", "migrate", "--print")
		b.store = "sqlite:" + b.path("missing/dibs.db")
		b.says(t, 69, "", "create it first", "migrate")
	})
	t.Run("memory", func(t *testing.T) {
		b := newBench(t)
		b.store = "memory:"
		b.says(t, 0, "memory: has no tables, so there is nothing to migrate\n", "", "migrate")
	})
}

// TestMissingTables: no command but dibs migrate makes tables on a server, even if its user may. Each
// says what to run, and runs nothing.
func TestMissingTables(t *testing.T) {
	t.Parallel()
	tables := map[string]func(b *bench) string{
		"postgres": func(b *bench) string {
			return sharedPostgres().Query("SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = '" + b.schema(t) + "'")[0][0]
		},
		"mysql": func(b *bench) string {
			_, prefix, _ := strings.Cut(b.store, "prefix=")
			return sharedMariaDB().Query("SELECT count(*) FROM information_schema.tables WHERE table_name LIKE '" + prefix + `\\_%'`)[0][0]
		},
	}
	for scheme, b := range map[string]*bench{"postgres": emptyPostgresBench(t), "mysql": emptyMariaDBBench(t)} {
		for _, args := range []string{
			"run k -- touch ran", "run --skip --quiet k -- touch ran", "demo --exit", "proxy --upstream http://127.0.0.1:1 --listen 127.0.0.1:0", "serve --listen 127.0.0.1:0",
			"ls", "show k", "release k --yes", "forget k --yes", "resolve k --rerun --yes", "prune", "doctor",
		} {
			b.says(t, 69, "", "the tables are missing or old; run dibs migrate --store '"+scheme+"://", strings.Fields(args)...)
		}
		if n := tables[scheme](b); n != "0" || b.exists("ran") {
			t.Errorf("%s: there are %s tables; it ran: %v", scheme, n, b.exists("ran"))
		}
		b.says(t, 0, "has its tables now", "", "migrate")
		b.says(t, 0, "", "", "run", "k", "--", "touch", "ran")
		if n := tables[scheme](b); n == "0" || !b.exists("ran") {
			t.Errorf("%s: there are %s tables; it ran: %v", scheme, n, b.exists("ran"))
		}
	}
	b := emptyPostgresBench(t)
	b.store = asStranger(t, b.store)
	b.says(t, 69, "", "the user needs the rights", "migrate")
	b.says(t, 69, "", "run dibs migrate --store 'postgres://", "run", "k", "--", "touch", "ran")
}

// asStranger returns the URL with a user that may use the schema's tables and create none.
func asStranger(t *testing.T, store string) string {
	t.Helper()
	u, err := url.Parse(store)
	testkit.Must(t, err)
	name := "stranger_" + u.Query().Get("schema")
	server, schema := sharedPostgres(), u.Query().Get("schema")
	server.Query("CREATE ROLE " + name + " LOGIN PASSWORD '" + secret + "'; CREATE SCHEMA IF NOT EXISTS " + schema + "; GRANT USAGE ON SCHEMA " + schema + " TO " + name +
		"; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA " + schema + " TO " + name)
	u.User = url.UserPassword(name, secret)
	return u.String()
}

// schema returns the schema that the store's URL names.
func (b *bench) schema(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(b.store)
	testkit.Must(t, err)
	return u.Query().Get("schema")
}

// TestMissingFile: a SQLite file that is missing is made by a command that uses the store, and by
// no command that looks at what others left there: a misspelt path would show an empty store.
func TestMissingFile(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"ls", "show k", "release k --yes", "forget k --yes", "resolve k --rerun --yes", "prune"} {
		b := newBench(t)
		b.says(t, 69, "", "there is no file "+b.path("dibs.db"), strings.Fields(args)...)
		if b.exists("dibs.db") {
			t.Errorf("%s made the file", args)
		}
	}
	b := newBench(t)
	b.says(t, 0, "", "", "run", "k", "--", "true")
	b.says(t, 0, "", "store sqlite:", "ls")
}

// says runs the program and checks how it ends and what it says; "" for nothing.
func (b *bench) says(t *testing.T, code int, stdout, stderr string, args ...string) {
	t.Helper()
	got, out, errs := b.run(t, args...)
	if got != code || !strings.Contains(out, stdout) || !strings.Contains(errs, stderr) ||
		stdout == "" && out != "" || stderr == "" && errs != "" {
		t.Errorf("%v: %d %q %q; want %d %q %q", args, got, out, errs, code, stdout, stderr)
	}
}
