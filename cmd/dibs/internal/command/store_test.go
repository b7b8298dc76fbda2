//go:build unix

package command_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// unnamed is a bench without a store.
func unnamed(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	b.store = ""
	return b
}

// TestAStoreMustBeNamed: a command without a store is refused, runs nothing and makes nothing,
// whatever the user's folders are. An empty --store is not a store.
func TestAStoreMustBeNamed(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{
		"a user":      nil,
		"cron":        {"HOME=", "XDG_STATE_HOME="},
		"a container": {"HOME=/nonexistent", "XDG_STATE_HOME=/nonexistent"},
	} {
		for _, args := range []string{
			"run k -- touch ran", "run --skip --quiet k -- touch ran", "ls", "show k", "release --yes k", "forget --yes k", "prune",
			"resolve k --rerun --yes", "migrate", "migrate --print", "doctor", "proxy --listen 127.0.0.1:0 --upstream http://127.0.0.1:1",
		} {
			b := unnamed(t)
			b.env = env
			b.says(t, 64, "", "no store is named; set --store or DIBS_STORE", strings.Fields(args)...)
			if made, err := os.ReadDir(b.dir); err != nil || len(made) > 0 {
				t.Errorf("%s: %s made %v, %v", name, args, made, err)
			}
		}
	}
	b := newBench(t)
	b.says(t, 64, "", `--store: it is empty`, "run", "--store=", "k", "--", "touch", "ran")
	b.says(t, 64, "", `--store: it is empty`, "proxy", "--store=", "--upstream", "http://127.0.0.1:1")
	if b.exists("ran") {
		t.Error("it ran")
	}
}

// TestStoreOfAFile: every command finds the URL of the store in the file that DIBS_STORE_FILE names. A flag
// overrides it. What does not need a store does not look at it.
func TestStoreOfAFile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	url := b.store
	b.write(t, "store", url+"\n")
	b.store, b.env = "", []string{"DIBS_STORE_FILE=" + b.path("store")}
	b.says(t, 0, "", "", "run", "--once-per", "1h", "k", "--", "true")
	for _, args := range []string{"ls --state done", "show k", "doctor", "migrate", "forget --yes k"} {
		if code, stdout, stderr := b.run(t, strings.Fields(args)...); code != 0 && args != "doctor" || !strings.Contains(stdout, "dibs.db") && !strings.Contains(stdout, "k ") {
			t.Errorf("%s: %d, %q, %q", args, code, stdout, stderr)
		}
	}
	b.write(t, "dibs.yaml", "upstream: http://127.0.0.1:1\nlisten: 127.0.0.1:0\n")
	for _, args := range []string{"proxy --config dibs.yaml", "serve --listen 127.0.0.1:0"} {
		p := b.start(t, strings.Fields(args)...)
		if p.awaitListening(t); !strings.Contains(p.stdout.String(), "store "+url) {
			t.Errorf("%s: %s", args, p.stdout.String())
		}
	}

	b.write(t, "bad", "mongo://:secret@h")
	for _, test := range []struct{ file, store, args, want string }{
		{"gone", "", "ls", "DIBS_STORE_FILE: there is no file " + b.path("gone")},
		{"gone", "", "run k -- touch ran", "DIBS_STORE_FILE: there is no file"},
		{"gone", "", "proxy --config dibs.yaml", "DIBS_STORE_FILE: there is no file"},
		{"gone", "", "config check dibs.yaml", "DIBS_STORE_FILE: there is no file"},
		{"gone", "", "serve", "DIBS_STORE_FILE: there is no file"},
		{"store", "sqlite:/other.db", "ls", "DIBS_STORE and the file of DIBS_STORE_FILE name different stores"},
		{"bad", "", "ls", `the scheme "mongo" is unknown`},
		{"bad", "", "proxy --config dibs.yaml", `DIBS_STORE_FILE: not the URL of a store: the scheme "mongo" is unknown`},
	} {
		b.store, b.env = test.store, []string{"DIBS_STORE_FILE=" + b.path(test.file)}
		b.says(t, 64, "", test.want, strings.Fields(test.args)...)
	}
	if b.exists("ran") {
		t.Error("it ran")
	}
	b.env = []string{"DIBS_STORE_FILE=" + b.path("gone")}
	b.says(t, 0, "", "", "run", "--store", url, "k", "--", "true")
	b.says(t, 0, "dibs ", "", "version")
}

// TestARelativeStoreIsRefused: every command refuses a file that a flag, the environment or a
// configuration names by a relative path, because that is another store in each folder. It names
// the whole path, runs nothing and makes nothing.
func TestARelativeStoreIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	real, err := filepath.EvalSymlinks(b.dir)
	testkit.Must(t, err)
	b.dir = real
	for store, whole := range map[string]string{
		"sqlite:dibs.db":              b.path("dibs.db"),
		"sqlite:./app.db?shared=true": b.path("app.db?shared=true"),
		"sqlite:../dibs.db":           b.dir + "/../dibs.db",
		"sqlite://dibs.db":            b.path("dibs.db"),
	} {
		for _, args := range []string{
			"run k -- touch ran", "run --skip --quiet k -- touch ran", "ls", "show k", "release --yes k", "forget --yes k", "prune", "resolve k --rerun --yes",
			"migrate", "migrate --print", "doctor", "demo --exit", "serve --listen 127.0.0.1:0", "proxy --listen 127.0.0.1:0 --upstream http://127.0.0.1:1",
		} {
			words := strings.Fields(args)
			b.store = store
			b.says(t, 64, "", "write sqlite:"+whole, words...)
			b.store = "sqlite:" + b.path("good.db")
			b.says(t, 64, "", "write sqlite:"+whole, append([]string{words[0], "--store", store}, words[1:]...)...)
		}
	}
	b.store = ""
	if made, err := os.ReadDir(b.dir); err != nil || len(made) > 0 {
		t.Errorf("it made %v, %v", made, err)
	}
	b.write(t, "dibs.yaml", "upstream: http://127.0.0.1:1\nlisten: 127.0.0.1:0\nstore: sqlite:dibs.db\n")
	for _, args := range []string{"proxy --config dibs.yaml", "config check dibs.yaml", "doctor --config dibs.yaml"} {
		b.says(t, 64, "", "write sqlite:"+b.path("dibs.db"), strings.Fields(args)...)
	}
}

// TestDoctor: the doctor prints findings with their cures, and the backend. It changes nothing.
func TestDoctor(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		b := newBench(t)
		b.says(t, 0, "unchecked  file: There is no file "+b.path("dibs.db")+" yet: the first dibs run, serve or proxy makes it.", "", "doctor")
		if b.exists("dibs.db") {
			t.Error("it made the file")
		}
		place := b.store
		b.store = "sqlite:" + b.path("missing/dibs.db")
		b.says(t, 1, "dangerous  folder: The file cannot be made: its folder does not exist", "", "doctor")
		b.store = place
		b.inspector(t)
		_, stdout, _ := b.run(t, "doctor") // with findings about this filesystem
		if !strings.Contains(stdout, "looked at  "+b.store+", SQLite 3.") {
			t.Error(stdout)
		}
	})
	t.Run("memory", func(t *testing.T) {
		b := newBench(t)
		b.store = "memory:"
		b.says(t, 0, "advice     memory: The store is a part of one process", "", "doctor")
	})
}

// TestDoctorConfig: the doctor of a proxy's configuration reports its faults as the proxy does,
// and then its findings with those of its store, the worst first. It reports its findings even if
// the store cannot be used.
func TestDoctorConfig(t *testing.T) {
	b := newBench(t)
	b.write(t, "dibs.yaml", "upstream: http://127.0.0.1:1\nleese: 3s\n")
	b.says(t, 64, "", "dibs doctor: dibs.yaml:2:1: unknown field \"leese\"", "doctor", "--config", "dibs.yaml")
	b.store = ""
	b.write(t, "dibs.yaml", "upstream: http://127.0.0.1:1\nadmin: 127.0.0.1:1\nscope: none\nstore: sqlite:"+b.path("other.db")+"\n")
	_, stdout, _ := b.run(t, "doctor", "--config", "dibs.yaml")
	for _, want := range []string{"advice     scope: ", "unchecked  file: There is no file " + b.path("other.db")} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in %s", want, stdout)
		}
	}
	b.store = "memory:"
	b.says(t, 0, `advice     scope: scope is none, so all clients share keys: a client that uses the key of another client gets its answer.
           Cure: Name what tells the clients apart, such as scope: credentials.
advice     plaintext: Answers are stored in plain text: a program that can read the store can read them.
           Cure: Set key-ring, if answers are secret.
advice     memory: `, "", "doctor", "--config", "dibs.yaml")
}

// TestDoctorPassword: a password that every user of the host can read is found.
func TestDoctorPassword(t *testing.T) {
	b := newPostgresBench(t) // whose URL has one
	b.inspector(t)
	const argument, file = "advice     password: The URL of the store is an argument", "advice     secret: The file dibs.yaml"
	b.write(t, "dibs.yaml", "upstream: http://127.0.0.1:1\nadmin: 127.0.0.1:1\nstore: "+b.store+"\n")
	testkit.Must(t, os.Chmod(b.path("dibs.yaml"), 0o644))
	b.says(t, 1, argument, "", "doctor", "--store", b.store)
	b.says(t, 1, argument, "", "doctor", "--store", b.store, "--config", "dibs.yaml")
	for _, args := range [][]string{{"doctor"}, {"doctor", "--config", "dibs.yaml"}} {
		if _, stdout, _ := b.run(t, args...); strings.Contains(stdout, argument) || strings.Contains(stdout, file) {
			t.Errorf("%v, with the URL in the environment: %s", args, stdout)
		}
	}
	b.store = ""
	b.says(t, 1, file, "", "doctor", "--config", "dibs.yaml")
}

// TestDoctorReport: a report has versions, kinds, names and settings, and nothing of a URL but its
// scheme, whether the store answers or not.
func TestDoctorReport(t *testing.T) {
	b := newPostgresBench(t) // whose URL has a password
	b.inspector(t)
	b.write(t, "dibs.yaml", "upstream: http://inner.example:1\nadmin: 127.0.0.1:1\nscope: none\nlease: 45s\non-crash: at-most-once\n"+
		"require-key: true\ncors: https://outer.example\nroutes:\n  - path: /hidden\n")
	for _, test := range []struct {
		name, store string
		code        int
		stdout      string
	}{
		{"a store that answers", b.store, 1, "postgres, PostgreSQL "},
		{"a store that does not", "postgres://app:" + secret + "@127.0.0.1:1/hidden?sslmode=disable", 69, "postgres, which was not asked or did not answer"},
		{"a file that is missing", "sqlite:" + b.path("hidden.db"), 0, "sqlite, which was not asked or did not answer"},
		{"no store", "", 64, "none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b.store = test.store
			code, stdout, stderr := b.run(t, "doctor", "--report", "--config", "dibs.yaml")
			if code != test.code {
				t.Errorf("it exited with %d: %s", code, stderr)
			}
			for _, want := range []string{
				"dibs      ", " go1.", "store     " + test.stdout, "advice    scope\n",
				"setting   upstream: (set)\n", "setting   scope: (set)\n", "setting   lease: 45s\n",
				"setting   on-crash: at-most-once\n", "setting   require-key: true\n", "setting   cors: (set)\n", "setting   routes: 1\n",
			} {
				if !strings.Contains(stdout, want) {
					t.Errorf("%q is not in\n%s", want, stdout)
				}
			}
			for _, private := range []string{secret, "127.0.0.1", "inner", "outer", "token", "hidden", "app", "postgres@", "bench", b.dir} {
				if strings.Contains(stdout, private) {
					t.Errorf("%q is in\n%s", private, stdout)
				}
			}
		})
	}
	b.says(t, 64, "", "--report and --json exclude each other", "doctor", "--report", "--json")
}

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

// TestServers: a key is held, shown and released on each kind of server. The nightly tests run
// every test on servers too.
func TestServers(t *testing.T) {
	t.Parallel()
	for _, k := range servers {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			b := k.fresh(t)
			for _, step := range []struct {
				args string
				code int
				says string
			}{
				{"migrate", 0, ""},
				{"run --once-per=1h k -- touch ran", 0, ""},
				{"run --once-per=1h k -- touch again", 0, "succeeded"},
				{"ls --state done", 0, "done"},
				{"forget k --yes", 0, "k is forgotten"},
				{"show k", 1, "the store has no record, holder or waiter of the key k"},
			} {
				code, stdout, stderr := b.run(t, strings.Fields(step.args)...)
				if code != step.code || !strings.Contains(stdout+stderr, step.says) {
					t.Errorf("%s: %d, %s%s", step.args, code, stdout, stderr)
				}
			}
			if !b.exists("ran") || b.exists("again") {
				t.Errorf("it ran: %v; again: %v", b.exists("ran"), b.exists("again"))
			}
		})
	}
}
