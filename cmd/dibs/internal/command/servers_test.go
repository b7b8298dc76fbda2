//go:build nightly

package command_test

import (
	"encoding/json"
	"fmt"
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
