package command_test

import (
	"strings"
	"testing"
)

// TestMigrate: tables are made once, however many make them, and it is said what
// was done; what needs no tables has nothing to migrate.
func TestMigrate(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		b := newPostgresBench(t)
		all := make([]*program, 10)
		for i := range all {
			all[i] = b.start(t, "migrate")
		}
		for _, p := range all {
			if code := p.code(t); code != 0 || strings.Count(p.stdout.String(), "\n") != 1 {
				t.Errorf("%d, %s%s", code, p.stdout.String(), p.stderr.String())
			}
		}
		b.says(t, 0, " is up to date, version 1\n", "", "migrate")
		b.says(t, 0, "", "", "ls")
		sharedPostgres().Query("UPDATE " + b.schema(t) + ".dibs_meta SET version = 99")
		b.says(t, 69, "", "use a newer program", "migrate")
		b.says(t, 69, "", "use a newer program", "run", "k", "--", "touch", "ran")
	})
	t.Run("mariadb", func(t *testing.T) {
		b := newMariaDBBench(t)
		all := make([]*program, 10)
		for i := range all {
			all[i] = b.start(t, "migrate")
		}
		for _, p := range all {
			if code := p.code(t); code != 0 || strings.Count(p.stdout.String(), "\n") != 1 {
				t.Errorf("%d, %s%s", code, p.stdout.String(), p.stderr.String())
			}
		}
		b.says(t, 0, " is up to date, version 2\n", "", "migrate")
		b.says(t, 0, "", "", "ls")
	})
	t.Run("sqlite", func(t *testing.T) {
		b := newBench(t)
		b.says(t, 0, "dibs.db is made; ", "", "migrate")
		b.says(t, 0, "dibs.db is up to date; ", "", "migrate")
		b.says(t, 0, "-- sqlite:", "", "migrate", "--print")
		b.store = "sqlite:" + b.path("missing/dibs.db")
		b.says(t, 69, "", "make it first", "migrate")
	})
	t.Run("redis", func(t *testing.T) {
		b := newRedisBench(t)
		b.says(t, 0, ": nothing to migrate\n", "", "migrate")
		b.says(t, 0, "-- redis://", "", "migrate", "--print")
	})
	t.Run("memory", func(t *testing.T) {
		b := newBench(t)
		b.store = "memory:"
		b.says(t, 0, "memory:: nothing to migrate\n", "", "migrate")
	})
}

// TestMigratePrint: what is printed, without a server, makes the tables when it is
// run on one.
func TestMigratePrint(t *testing.T) {
	b := newPostgresBench(t)
	code, sql, stderr := b.run(t, "migrate", "--print", "--store", "postgres://127.0.0.1:1/none?schema="+b.schema(t))
	if code != 0 || stderr != "" {
		t.Fatalf("%d, %s", code, stderr)
	}
	sharedPostgres().Query(sql)
	b.says(t, 0, " is up to date, version 1\n", "", "migrate")
	b.says(t, 0, "", "", "run", "k", "--", "true")

	m := newMariaDBBench(t)
	_, query, _ := strings.Cut(m.store, "?")
	code, sql, stderr = m.run(t, "migrate", "--print", "--store", "mariadb://127.0.0.1:1/none?"+query)
	if code != 0 || stderr != "" {
		t.Fatalf("%d, %s", code, stderr)
	}
	sharedMariaDB().Query("USE app;\n" + sql)
	m.says(t, 0, " is up to date, version 2\n", "", "migrate")
	m.says(t, 0, "", "", "run", "k", "--", "true")
}

// TestMissingTables: a command that uses the store makes missing tables if it may;
// one that looks makes none; who may not is told what to run, and nothing runs.
func TestMissingTables(t *testing.T) {
	const cure = "run dibs migrate --store 'postgres://"
	tables := func(b *bench) string {
		return sharedPostgres().Query("SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = '" + b.schema(t) + "'")[0][0]
	}
	b := newPostgresBench(t)
	for _, args := range []string{"ls", "show k", "release k --yes", "forget k --yes", "prune", "doctor"} {
		b.says(t, 69, "", cure, strings.Fields(args)...)
	}
	own := b.store
	b.store = own + "&migrate=false"
	b.says(t, 69, "", "migrate=false; with a user who may create tables, "+cure, "run", "k", "--", "touch", "ran")
	b.store = asStranger(t, own)
	for _, args := range []string{"run k -- touch ran", "race", "demo --exit"} {
		b.says(t, 69, "", "permission denied", strings.Fields(args)...)
	}
	b.says(t, 69, "", "the user needs the rights", "migrate")
	if n := tables(b); n != "0" || b.exists("ran") {
		t.Errorf("there are %s tables; it ran: %v", n, b.exists("ran"))
	}
	m := newMariaDBBench(t)
	for _, args := range []string{"ls", "doctor", "prune"} {
		m.says(t, 69, "", "run dibs migrate --store 'mysql://root@", strings.Fields(args)...)
	}
	b.store = own
	b.says(t, 0, "", "", "run", "k", "--", "touch", "ran")
	if n := tables(b); n == "0" || !b.exists("ran") {
		t.Errorf("there are %s tables; it ran: %v", n, b.exists("ran"))
	}
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
