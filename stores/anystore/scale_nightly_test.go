//go:build nightly

package anystore

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// scaled returns the numbers of a row of docs/start/scale.md: of SQLite, Redis, PostgreSQL and MariaDB.
func scaled(t *testing.T, row string) (figures []int) {
	t.Helper()
	page := string(testkit.ReadFile(t, "../../docs/start/scale.md"))
	found := regexp.MustCompile(`(?m)^\| ` + row + ` \|(.*)\|$`).FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("docs/start/scale.md has no row %q", row)
	}
	for cell := range strings.SplitSeq(found[1], "|") {
		n, err := strconv.Atoi(strings.ReplaceAll(strings.TrimSpace(cell), ",", ""))
		testkit.Must(t, err)
		figures = append(figures, n)
	}
	return figures
}

// TestSpace: a held key and a record take the bytes that docs/start/scale.md says, give or take a
// quarter, because servers take space in steps.
func TestSpace(t *testing.T) {
	for row, record := range map[string]bool{"a held key": false, "a record of 1 KiB": true} {
		path := filepath.Join(t.TempDir(), "dibs.db")
		redis := servertest.Redis(t, nil)
		postgres := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
		maria := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true})
		for i, test := range []struct {
			url  string
			size func() string
		}{
			{"sqlite:" + path, func() (size string) {
				db, err := sql.Open("sqlite", path)
				testkit.Must(t, err)
				defer db.Close()
				testkit.Must(t, db.QueryRowContext(t.Context(), "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").Scan(&size))
				return size
			}},
			{redis.URL(), func() string { return redis.Info("used_memory") }},
			{postgres.URL() + "&migrate=true", func() string {
				return postgres.Query(`SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'dibs\_%' AND relkind = 'r'`)[0][0]
			}},
			{maria.URL() + "?migrate=true", func() string {
				maria.Query("ANALYZE TABLE dibs_key, dibs_holder, dibs_waiter, dibs_progress, dibs_record, dibs_meta") // counts their pages
				return maria.Query(`SELECT sum(data_length + index_length) FROM information_schema.tables WHERE table_name LIKE 'dibs\_%'`)[0][0]
			}},
		} {
			s, err := Open(t.Context(), test.url, ToUse)
			testkit.Must(t, err)
			size := func() int {
				n, err := strconv.Atoi(test.size())
				testkit.Must(t, err)
				return n
			}
			occupy(t, s.Store, -50, 0, record) // scripts and buffers
			before := size()
			occupy(t, s.Store, 0, 10_000, record)
			got, want := (size()-before)/10_000, scaled(t, row)[i]
			version, err := s.Version(t.Context())
			testkit.Must(t, err)
			t.Logf("%s: %s takes %d bytes", version, row, got)
			if got < want*3/4 || got > want*5/4 {
				t.Errorf("%s: %s takes %d bytes, and docs/start/scale.md says %d", version, row, got, want)
			}
			testkit.Check(t, s.Close())
		}
	}
}

// occupy takes keys of 40 bytes, fifty in a call, and stores a record for each if record is set.
func occupy(t *testing.T, s store.Store, from, to int, record bool) {
	t.Helper()
	for ; from < to; from += 50 {
		claims, answers := make([]store.Claim, 50), make([]store.Answer, 50)
		settlements, errs := make([]store.Settlement, 50), make([]error, 50)
		for i := range claims {
			name := fmt.Sprintf("%x", sha256.Sum256([]byte(strconv.Itoa(from+i))))[:40]
			k, token := store.Key{Name: name}, store.NewToken()
			claims[i] = store.Claim{Key: k, Token: token, TTL: time.Hour, MaxAge: store.AnyAge, Permits: 1, Weight: 1}
			data := make([]byte, 1<<10)
			_, _ = rand.Read(data) // which nothing can compress
			settlements[i] = store.Settlement{Key: k, Token: token, Outcome: store.Keep, Data: data, Retention: time.Hour}
		}
		testkit.Must(t, s.Claim(t.Context(), claims, answers))
		for _, a := range answers {
			if a.State != store.Granted {
				t.Fatalf("a claim was answered %+v", a)
			}
		}
		if !record {
			continue
		}
		testkit.Must(t, s.Settle(t.Context(), settlements, errs))
		for _, err := range errs {
			testkit.Must(t, err)
		}
	}
}

// TestConnections: a process has at most the connections that docs/start/scale.md says. Each is a store
// and a client here.
func TestConnections(t *testing.T) {
	redis := servertest.Redis(t, nil)
	postgres := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true, MaxConnections: 1000})
	maria := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true, MaxConnections: 1000})
	for i, test := range []struct {
		url   string
		count func() int
	}{
		{redis.URL(), func() int { return strings.Count(onRedis(redis)(), "\n") }},
		{postgres.URL() + "&migrate=true", func() int {
			return len(postgres.Query("SELECT pid FROM pg_stat_activity WHERE application_name = 'dibs'"))
		}},
		{maria.URL() + "?migrate=true", func() int {
			return len(maria.Query("SELECT id FROM information_schema.processlist WHERE host <> 'localhost' AND user = 'root'"))
		}},
	} {
		for _, processes := range []string{"1 process", "100 processes"} {
			t.Run(fmt.Sprintf("%.5s/%s", test.url, processes), func(t *testing.T) {
				crowd(t, test.url, processes, i, test.count)
			})
		}
	}
}

// crowd lets each process hold a key, then wait for another one, then make calls by 16 goroutines.
func crowd(t *testing.T, url, processes string, column int, count func() int) {
	nothing := func(context.Context) error { return nil }
	n, err := strconv.Atoi(strings.Fields(processes)[0])
	testkit.Must(t, err)
	most := n * scaled(t, "at most, for a process")[column]
	counted := func(when string) (got int) {
		got = count()
		t.Logf("%s, %s: %d connections", processes, when, got)
		if got > most {
			t.Errorf("%s, %s: %d connections, and docs/start/scale.md says at most %d", processes, when, got, most)
		}
		return got
	}
	migrated(t, url)
	var clients []*dibs.Client
	var held []*dibs.Lease
	for i := range n {
		s, err := Open(t.Context(), url, ToUse)
		testkit.Must(t, err)
		defer func() { testkit.Check(t, s.Close()) }()
		c, err := dibs.New(s.Store, &dibs.Options{TTL: time.Hour, Timeout: testkit.Limit})
		testkit.Must(t, err)
		defer func() { testkit.Check(t, c.Close()) }()
		lease, err := c.Acquire(t.Context(), fmt.Sprintf("%s %d", processes, i), nil)
		testkit.Must(t, err)
		clients, held = append(clients, c), append(held, lease)
	}
	before := counted("each holds a key")
	wanted, err := clients[0].Acquire(t.Context(), processes, nil)
	testkit.Must(t, err)
	var calls sync.WaitGroup
	for _, c := range clients {
		calls.Go(func() { testkit.Check(t, c.Do(t.Context(), processes, nothing)) })
	}
	testkit.Eventually(t, "each has one more connection, because it waits", func() bool { return count() >= before+n })
	counted("each waits for another")
	for i, c := range clients {
		for g := range 16 {
			calls.Go(func() {
				for range 10 {
					testkit.Check(t, c.Do(t.Context(), fmt.Sprintf("%s %d %d", processes, i, g), nothing))
				}
			})
		}
	}
	testkit.Check(t, wanted.Release())
	calls.Wait()
	counted("after calls by 16 goroutines of each")
	for _, lease := range held {
		testkit.Check(t, lease.Release())
	}
}
