//go:build nightly

package command_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

func init() { shared = append(shared, servers...) }

// TestRunLockedRow: while another transaction keeps the key's row locked, the store cannot be
// used for that key, and the command does not run.
func TestRunLockedRow(t *testing.T) {
	t.Parallel()
	b := newPostgresBench(t)
	b.says(t, 0, "", "", "run", "k", "--", "true") // the row is kept for a while
	var locking sync.WaitGroup
	defer locking.Wait()
	locking.Go(func() {
		rows, err := sharedPostgres().Do("SELECT FROM " + b.schema(t) + ".dibs_key FOR UPDATE; SELECT pg_sleep(600)")
		if err == nil {
			t.Errorf("the lock ended by itself: %v", rows)
		}
	})
	sleeper := "SELECT %s FROM pg_stat_activity WHERE query LIKE '%%" + b.schema(t) + ".dibs_key FOR UPDATE%%' AND wait_event = 'PgSleep'"
	defer func() { sharedPostgres().Query(fmt.Sprintf(sleeper, "pg_terminate_backend(pid)")) }()
	testkit.Eventually(t, "the lock", func() bool { return sharedPostgres().Query(fmt.Sprintf(sleeper, "count(*)"))[0][0] == "1" })
	// A waiter waits for the row as long as it would wait for the key.
	b.says(t, 69, "", "a key's row is locked", "run", "--skip", "k", "--", "touch", "ran")
	b.says(t, 69, "", "a key's row is locked", "run", "--wait", "3s", "k", "--", "touch", "ran")
	if b.exists("ran") {
		t.Error("it ran")
	}
}

// TestRunBusyAtTheEnd: if a transaction keeps the key's row locked when the command ends, dibs
// run retries until the key is released and the success is stored.
func TestRunBusyAtTheEnd(t *testing.T) {
	t.Parallel()
	for key, flags := range map[string][]string{"plain": nil, "once": {"--once-per=1h"}} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			b := newPostgresBench(t)
			_, schema, _ := strings.Cut(b.store, "&schema=")
			p := b.start(t, append(append([]string{"run"}, flags...), key, "--", "sh", "-c", "while ! test -e "+key+".go; do sleep 0.01; done; echo ran >> "+key+".ran")...)
			testkit.Eventually(t, "the holder", func() bool { return entry(t, b.inspector(t), key).Condition == store.ConditionHeld })
			// Longer than a call of the store may take.
			locked := fmt.Sprintf("BEGIN; SELECT 1 FROM %s.dibs_key FOR UPDATE; SELECT pg_sleep(6); COMMIT", schema)
			unlocked := make(chan error, 1)
			go func() {
				_, err := sharedPostgres().Do(locked)
				unlocked <- err
			}()
			testkit.Eventually(t, "the lock", func() bool {
				rows, err := sharedPostgres().Do("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%" + schema + ".dibs_key%'")
				return err == nil && len(rows) > 0
			})
			b.write(t, key+".go", "")
			if code := p.code(t); code != 0 || p.stderr.String() != "" {
				t.Errorf("%d, %q", code, p.stderr.String())
			}
			testkit.Check(t, <-unlocked)
			if code, _, stderr := b.run(t, append(append([]string{"run", "--skip"}, flags...), key, "--", "sh", "-c", "echo ran >> "+key+".ran")...); code != 0 {
				t.Errorf("the next one: %d, %q", code, stderr)
			}
			if n, want := len(b.lines(key+".ran")), 2-len(flags); n != want {
				t.Errorf("it ran %d times; want %d", n, want)
			}
		})
	}
}

// migrates has several processes create the tables at once.
func migrates(t *testing.T, b *bench) {
	t.Helper()
	all := make([]*program, 10)
	for i := range all {
		all[i] = b.start(t, "migrate")
	}
	for _, p := range all {
		if code := p.code(t); code != 0 || strings.Count(p.stdout.String(), "\n") != 1 {
			t.Errorf("%d, %s%s", code, p.stdout.String(), p.stderr.String())
		}
	}
	b.says(t, 0, " is up to date\n", "", "migrate")
	b.says(t, 0, "", "store ", "ls")
}

// TestMigrateServers: tables are created once, by one of several processes. A store without
// tables has nothing to migrate.
func TestMigrateServers(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		b := emptyPostgresBench(t)
		migrates(t, b)
		sharedPostgres().Query("UPDATE " + b.schema(t) + ".dibs_meta SET version = 99")
		b.says(t, 69, "", "use a newer program", "migrate")
		b.says(t, 69, "", "use a newer program", "run", "k", "--", "touch", "ran")
	})
	t.Run("mariadb", func(t *testing.T) {
		migrates(t, emptyMariaDBBench(t))
	})
	t.Run("redis", func(t *testing.T) {
		b := newRedisBench(t)
		b.says(t, 0, " has no tables, so there is nothing to migrate\n", "", "migrate")
		b.says(t, 0, "-- redis://", "", "migrate", "--print")
	})
}

// TestMigratePrint: the SQL is printed without a server, and creates the tables on one.
func TestMigratePrint(t *testing.T) {
	b := emptyPostgresBench(t)
	code, sql, stderr := b.run(t, "migrate", "--print", "--store", "postgres://127.0.0.1:1/none?schema="+b.schema(t))
	if code != 0 || stderr != "" {
		t.Fatalf("%d, %s", code, stderr)
	}
	sharedPostgres().Query(sql)
	b.says(t, 0, " is up to date\n", "", "migrate")
	b.says(t, 0, "", "", "run", "k", "--", "true")

	m := emptyMariaDBBench(t)
	_, query, _ := strings.Cut(m.store, "?")
	code, sql, stderr = m.run(t, "migrate", "--print", "--store", "mariadb://127.0.0.1:1/none?"+query)
	if code != 0 || stderr != "" {
		t.Fatalf("%d, %s", code, stderr)
	}
	sharedMariaDB().Query("USE app;\n" + sql)
	m.says(t, 0, " is up to date\n", "", "migrate")
	m.says(t, 0, "", "", "run", "k", "--", "true")
}

// TestDoctorServers: the doctor prints findings with their cures, and the backend.
func TestDoctorServers(t *testing.T) {
	t.Run("dangerous", func(t *testing.T) {
		b := newPostgresBench(t) // on a server that does not sync
		b.inspector(t)
		b.says(t, 1, "dangerous  durability: fsync is off", "", "doctor")
		b.says(t, 1, "Cure: Set fsync = on.\n", "", "doctor")
		b.says(t, 1, "looked at  postgres://postgres@"+sharedPostgres().Addr()+"/", "", "doctor")
	})
	t.Run("well", func(t *testing.T) {
		b := newBench(t)
		b.store = servertest.Postgres(t, &servertest.PostgresOptions{Password: secret}).URL()
		b.says(t, 0, "has its tables now", "", "migrate")
		if _, stdout, _ := b.run(t, "doctor"); !strings.HasPrefix(stdout, "advice     rights: ") || strings.Count(stdout, "Cure: ") != 1 {
			t.Errorf("the owner is told %s", stdout)
		}
		b.says(t, 0, "PostgreSQL ", "", "doctor")
	})
	t.Run("redis", func(t *testing.T) {
		b := newRedisBench(t)
		b.says(t, 1, "dangerous  persistence: ", "", "doctor")
		b.says(t, 1, ", Redis ", "", "doctor")
	})
}

// TestDoctorJSON: one object a line, the findings and then the backend.
func TestDoctorJSON(t *testing.T) {
	b := newPostgresBench(t) // on a server that does not sync
	b.inspector(t)
	code, stdout, stderr := b.run(t, "doctor", "--json")
	if code != 1 || stderr != "" {
		t.Fatalf("%d, %s", code, stderr)
	}
	type object struct {
		Name, Severity, What, Cure, Store, Version string
		RoundTripUS                                int64 `json:"round_trip_us"`
		Findings                                   *int
	}
	var all []object
	for text := range strings.Lines(stdout) {
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		var o object
		if err := d.Decode(&o); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		all = append(all, o)
	}
	last := len(all) - 1
	if o := all[last]; o.Findings == nil || *o.Findings != last || o.RoundTripUS <= 0 || !strings.HasPrefix(o.Version, "PostgreSQL ") || o.Store == "" {
		t.Errorf("looked at: %+v", o)
	}
	if !slices.ContainsFunc(all[:last], func(o object) bool {
		return o.Name == "durability" && o.Severity == "dangerous" && o.Cure == "Set fsync = on." && o.What != ""
	}) {
		t.Errorf("the findings are %+v", all[:last])
	}
}

// TestDemoShown: on every store updates are lost without a lock and none with it, orders are charged
// twice without dibs, and each once with it.
func TestDemoShown(t *testing.T) {
	everyStore(t, func(t *testing.T, b *bench) {
		b.env = append(b.env, "TMPDIR="+b.dir)
		stdout, lost := b.demo(t)
		if !lost {
			t.Error("no update was lost without a lock")
		}
		for _, row := range []string{
			`orders charged more than once +[1-9]\d* +0\n`, `orders lost +\d+ +0\n`, `answers replayed +0 +[1-9]`,
			`conflicts \(409\), retried +0 +[1-9]`, `cut off by the kill, then resolved +0 +[1-9]`,
		} {
			if !regexp.MustCompile(row).MatchString(stdout) {
				t.Errorf("there is no row %s:\n%s", row, stdout)
			}
		}
	})
}

// TestReader: a user that may only read can ls, show and doctor. dibs run and release say which
// right is missing.
func TestReader(t *testing.T) {
	t.Parallel()
	for name, reader := range map[string]func(*testing.T) (b *bench, asReader func()){
		"redis": func(t *testing.T) (*bench, func()) {
			server := servertest.Redis(t, &servertest.RedisOptions{Password: secret})
			return &bench{dir: t.TempDir(), store: server.URL()}, func() {
				server.Must("ACL", "SETUSER", "reader", "on", ">"+secret, "~dibs:*", "+@read", "+@connection")
			}
		},
		"postgres": func(t *testing.T) (*bench, func()) {
			b := newPostgresBench(t)
			schema := b.schema(t)
			return b, func() {
				sharedPostgres().Query("CREATE ROLE reader LOGIN PASSWORD '" + secret + "'; GRANT USAGE ON SCHEMA " + schema + " TO reader" +
					"; GRANT SELECT ON ALL TABLES IN SCHEMA " + schema + " TO reader")
			}
		},
		"mariadb": func(t *testing.T) (*bench, func()) {
			return newMariaDBBench(t), func() {
				sharedMariaDB().Query("CREATE USER reader@'127.0.0.1' IDENTIFIED BY '" + secret + "'")
				sharedMariaDB().Query("GRANT SELECT ON app.* TO reader@'127.0.0.1'")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, asReader := reader(t)
			b.says(t, 0, "", "", "run", "--once-per=1h", "k", "--", "true")
			asReader()
			u, err := url.Parse(b.store)
			testkit.Must(t, err)
			u.User = url.UserPassword("reader", secret)
			b.store = u.String()
			if code, stdout, stderr := b.run(t, "ls", "--state", "all"); code != 0 || !strings.HasPrefix(stderr, "store ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stdout, "k ") {
				t.Errorf("ls: %d, %q, %q", code, stdout, stderr)
			}
			if code, stdout, stderr := b.run(t, "show", "k"); code != 0 || stderr != "" || !strings.Contains(stdout, "done") {
				t.Errorf("show: %d, %q, %q", code, stdout, stderr)
			}
			// It exits with 1 because the server is not durable.
			if _, stdout, stderr := b.run(t, "doctor"); stderr != "" || !strings.Contains(stdout, "unchecked  rights: ") {
				t.Errorf("doctor: %q, %q", stdout, stderr)
			}
			for _, args := range [][]string{{"run", "j", "--", "touch", "ran"}, {"forget", "--yes", "k"}} {
				code, stdout, stderr := b.run(t, args...)
				if code != 69 || !strings.Contains(stderr, "GRANT ") && !strings.Contains(stderr, "ACL SETUSER") {
					t.Errorf("%v: %d, %q, %q", args, code, stdout, stderr)
				}
			}
			if b.exists("ran") {
				t.Error("it ran")
			}
		})
	}
}

// TestSlowGuides: as TestGuides, for the pages that take longer or that need a server. The
// conformance kit's page is left out, because its command needs an implementation to check, and so
// is the page of TestDatabaseGuide.
func TestSlowGuides(t *testing.T) {
	for _, page := range pages(t) {
		if !slices.Contains(quick, page) && page != "reference/conformance.md" && page != databases && slices.ContainsFunc(blocks(t, page), func(b block) bool { return slices.Contains(runs, b.language) }) {
			t.Run(page, func(t *testing.T) { checkGuide(t, page) })
		}
	}
}

// TestReadmeDemo: the demo prints what the README's picture shows. Of the numbers, only the double
// charges and the lost orders are compared.
func TestReadmeDemo(t *testing.T) {
	var picture struct {
		Lines []string `xml:"text"`
	}
	testkit.Must(t, xml.Unmarshal(testkit.ReadFile(t, top+"/docs/pictures/demo.svg"), &picture))
	want := strings.Join(picture.Lines[1:], "\n") // without the prompt
	out, err := exec.Command(binary, "demo", "--exit").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	number := regexp.MustCompile(`\$?[0-9][0-9.]*`)
	space := regexp.MustCompile(` +`)
	// The order of the crash is sent once only. It is charged once if the proxy was killed
	// before it arrived.
	lost := regexp.MustCompile(`\d updates? (is|are) lost`)
	alone := regexp.MustCompile(`(charged more than once +)149`)
	shape := func(text string) []string {
		var lines []string
		text = lost.ReplaceAllString(text, "N updates are lost")
		text = alone.ReplaceAllString(text, "${1}150")
		for line := range strings.Lines(strings.TrimSpace(text)) {
			if !strings.Contains(line, "charged more than once") && !strings.Contains(line, "orders lost") {
				line = number.ReplaceAllString(line, "N")
			}
			if line = strings.TrimSpace(space.ReplaceAllString(line, " ")); line != "" { // the picture has no empty lines
				lines = append(lines, line)
			}
		}
		return lines
	}
	got, shown := shape(string(out)), shape(want)
	for i := range max(len(got), len(shown)) {
		if i >= len(got) || i >= len(shown) || got[i] != shown[i] {
			t.Fatalf("the demo prints\n%s\nthe README shows\n%s", out, want)
		}
	}
}
