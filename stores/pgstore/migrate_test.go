package pgstore

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestMigrateAtOnce: ten processes that start at once make one set of tables, even
// after they have seen that there is none, at whatever isolation level they are.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	server, schema := shared(), testkit.Own()
	var all, looked sync.WaitGroup
	looked.Add(10)
	for n := range 10 {
		all.Go(func() {
			config, err := pgx.ParseConfig(server.URL())
			testkit.Check(t, err)
			config.RuntimeParams["default_transaction_isolation"] = []string{"read committed", "repeatable read"}[n%2]
			conn, err := pgx.ConnectConfig(t.Context(), config)
			if err == nil {
				_, err = namer{schema: schema, prefix: "other"}.version(t.Context(), conn)
			}
			looked.Done()
			looked.Wait()
			if err == nil {
				err = Migrate(t.Context(), conn, &Options{Schema: schema, Prefix: "other"})
			}
			if err == nil {
				err = conn.Close(t.Context())
			}
			testkit.Check(t, err)
		})
	}
	all.Wait()
	s := open(t, server.URL(), &Options{Schema: schema, Prefix: "other"})
	sqltest.Work(t, s)
	if got := server.Query(`SELECT count(*) FROM "` + schema + `".other_meta`)[0][0]; got != "1" {
		t.Errorf("%s rows in the table of which there is one", got)
	}
	if got := server.Query(`SELECT count(*) FROM pg_class WHERE relnamespace = '` + schema + `'::regnamespace AND relname NOT LIKE 'other%'`)[0][0]; got != "0" {
		t.Errorf("%s things without the prefix", got)
	}
}

// TestMigrations: what is printed makes a store, when it is run by hand.
func TestMigrations(t *testing.T) {
	t.Parallel()
	server, schema := shared(), testkit.Own()
	all, err := Migrations(&Options{Schema: schema})
	testkit.Must(t, err)
	server.Query("CREATE SCHEMA " + schema)
	atVersion(t, server.URL(), schema, 0)
	for i, m := range all {
		if m.Version != i+1 || strings.Contains(m.SQL, "@") {
			t.Errorf("migration %d has version %d, or names that were left out", i, m.Version)
		}
		server.Query(m.SQL)
		atVersion(t, server.URL(), schema, i+1)
	}
	s, err := Open(t.Context(), server.URL(), &Options{Schema: schema})
	testkit.Must(t, err)
	defer s.Close()
	sqltest.Work(t, s)
}

// atVersion checks what Version says of the tables.
func atVersion(t *testing.T, url, schema string, want int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	testkit.Must(t, err)
	defer conn.Close(t.Context())
	o, err := (&Options{Schema: schema}).withDefaults()
	testkit.Must(t, err)
	have, err := namer{schema: o.Schema, prefix: o.Prefix}.version(t.Context(), conn)
	if have != want || err != nil {
		t.Errorf("version %d, %v; want %d", have, err, want)
	}
}

// TestSchemas: stores in one database that differ in schema or prefix never meet.
func TestSchemas(t *testing.T) {
	t.Parallel()
	one, two := testkit.Own(), testkit.Own()
	stores := []*Store{
		open(t, shared().URL(), &Options{Schema: one}), open(t, shared().URL(), &Options{Schema: two}),
		open(t, shared().URL()+"&prefix=p", &Options{Schema: one}),
	}
	for i, s := range stores {
		lease, err := sqltest.Client(t, s, nil).TryAcquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatalf("store %d: %v", i, err)
		}
		t.Cleanup(func() { _ = lease.Release() })
	}
}

// TestNames: what is not a name is refused before it is written into SQL.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{`a"b`, "a-b", "A", "1a", "a b", "a;DROP TABLE x", "é", strings.Repeat("a", 64)} {
		if _, err := Open(t.Context(), shared().URL(), &Options{Schema: name}); err == nil || !strings.Contains(err.Error(), "Options.Schema") {
			t.Errorf("schema %q: %v", name, err)
		}
		if _, err := Migrations(&Options{Prefix: name}); err == nil || !strings.Contains(err.Error(), "Options.Prefix") {
			t.Errorf("prefix %q: %v", name, err)
		}
	}
	sqltest.Work(t, open(t, shared().URL(), &Options{Schema: testkit.Own(), Prefix: strings.Repeat("p", 32)}))
}

// plan is a node of what EXPLAIN (ANALYZE, FORMAT JSON) prints.
type plan struct {
	Type    string  `json:"Node Type"`
	Rows    float64 `json:"Actual Rows"`
	Loops   float64 `json:"Actual Loops"`
	Removed float64 `json:"Rows Removed by Filter"`
	Plans   []plan
}

// read returns how many rows the plan has read from tables and indexes.
func (p *plan) read() float64 {
	if len(p.Plans) == 0 {
		return (p.Rows + p.Removed) * p.Loops
	}
	n := 0.0
	for i := range p.Plans {
		n += p.Plans[i].read()
	}
	return n
}

// TestListReadsNoRecordsForLiveKeys: the statement that lists what is held, waited for or
// abandoned reads none of the keys that are done, even before the server has counted the rows.
// The statement that lists done keys reads a page of them.
func TestListReadsNoRecordsForLiveKeys(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), ownNames())
	db := openDB(t, shared().URL())
	exec := func(sql string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), s.names.sql(sql)); err != nil {
			t.Fatal(err)
		}
	}
	live := sqltest.Live(t, s)
	exec(fmt.Sprintf(`INSERT INTO @key (k, fence, rec_token, rec_written, rec_ends, rec_data, listed)
		SELECT '\x00'::bytea || convert_to('order ' || i, 'UTF8'), i, decode(md5(i::text), 'hex'), @now(), @now() + 3600000000, 'answer', false
		FROM generate_series(1, %d) i`, sqltest.DoneKeys))
	read := func(part storekit.Part) float64 {
		t.Helper()
		var text string
		tx, err := db.BeginTx(t.Context(), nil)
		testkit.Must(t, err)
		defer tx.Rollback()
		if _, err := tx.ExecContext(t.Context(), "SELECT "+planned); err != nil {
			t.Fatal(err)
		}
		testkit.Must(t, tx.QueryRowContext(t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) "+s.sql.list[part].sql, []byte{}, []byte{0xff}, 256).Scan(&text))
		var plans []struct{ Plan plan }
		testkit.Must(t, json.Unmarshal([]byte(text), &plans))
		return plans[0].Plan.read()
	}
	for _, counted := range []bool{false, true} {
		if counted {
			exec("ANALYZE @key")
		}
		if n := read(storekit.Live); n > float64(3*live) {
			t.Errorf("to list %d live keys among %d, %v rows were read (counted: %v)", live, sqltest.DoneKeys, n, counted)
		}
		if n := read(storekit.Kept); n > 2*256 {
			t.Errorf("to list 256 keys that are done, %v rows were read (counted: %v)", n, counted)
		}
	}
	sqltest.ListsLive(t, s, live)
}

// TestListedFollowsTheRow: the column is right after a lease that was handed over to nobody, and
// after a record that was pruned while a place stood.
func TestListedFollowsTheRow(t *testing.T) {
	t.Parallel()
	o := ownNames()
	o.PruneEvery = -1
	s := open(t, shared().URL(), o)
	claim := func(key string, mode store.Mode) store.Claim {
		t.Helper()
		c := store.Claim{Key: store.Key{Name: key}, Token: store.NewToken(), Mode: mode, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}
		answers := make([]store.Answer, 1)
		if err := s.Claim(t.Context(), []store.Claim{c}, answers); err != nil || answers[0].Err != nil {
			t.Fatal(err, answers[0].Err)
		}
		return c
	}
	settle := func(c store.Claim, outcome store.Outcome, retention time.Duration) {
		t.Helper()
		errs := make([]error, 1)
		x := store.Settlement{Key: c.Key, Token: c.Token, Outcome: outcome, Retention: retention}
		if err := s.Settle(t.Context(), []store.Settlement{x}, errs); err != nil || errs[0] != nil {
			t.Fatal(err, errs[0])
		}
	}
	settle(claim("k", store.Try), store.Keep, time.Hour)
	lease := claim("k", store.Try)
	claim("k", store.Reserve)
	settle(lease, store.Release, 0)
	checkListed(t, shared(), o)

	settle(claim("pruned", store.Try), store.Keep, time.Millisecond)
	claim("pruned", store.Reserve)
	shared().Query(s.names.sql("UPDATE @key SET busy = true WHERE rec_ends > 0; SELECT pg_sleep(0.01)"))
	if _, err := s.Prune(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	checkListed(t, shared(), o)
}

// TestIndexStays: taking and releasing a key again and again leaves its index as it
// is, and neither that nor a replay makes the table grow.
func TestIndexStays(t *testing.T) {
	t.Parallel()
	url := ownDatabase(shared()) // without others' transactions
	s := open(t, url, &Options{PruneEvery: -1})
	db := openDB(t, url)
	// What a vacuum does meanwhile would be a matter of luck.
	if _, err := db.ExecContext(t.Context(), s.names.sql("ALTER TABLE @key SET (autovacuum_enabled = off)")); err != nil {
		t.Fatal(err)
	}
	const rounds = 200
	for range rounds {
		sqltest.Cycle(t, s, store.Key{Name: "k"})
	}
	if err := s.Close(); err != nil { // the server counts what a connection did when it ends
		t.Fatal(err)
	}
	count := func(what string) (n int) {
		t.Helper()
		testkit.Must(t, db.QueryRowContext(t.Context(), s.names.sql("SELECT "+what+" FROM pg_stat_user_tables WHERE relid = '@key'::regclass")).Scan(&n))
		return n
	}
	testkit.Eventually(t, "the server's own count", func() bool { return count("n_tup_upd") >= 2*rounds-1 })
	if all, hot := count("n_tup_upd"), count("n_tup_hot_upd"); hot < all*98/100 {
		t.Errorf("of %d updates %d left the index as it was", all, hot)
	}
	// Each version on a place of its own would be some 13 pages.
	if pages := count("pg_relation_size(relid) / 8192"); pages >= 10 {
		t.Errorf("one key has %d pages", pages)
	}
}

// TestSweepLeavesTheBusyAlone: a sweep does not lock a key that has a holder and waiters, and
// nothing that has expired.
func TestSweepLeavesTheBusyAlone(t *testing.T) {
	t.Parallel()
	o := ownNames()
	o.PruneEvery = -1
	s := open(t, shared().URL(), o)
	c := sqltest.Client(t, s, nil)
	lease, err := c.Acquire(t.Context(), "k", nil)
	testkit.Must(t, err)
	if _, _, err := c.Reserve(t.Context(), "k", time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	lockedBy := func() (xid string) {
		t.Helper()
		testkit.Must(t, s.front.QueryRow(t.Context(), s.names.sql("SELECT xmax::text FROM @key")).Scan(&xid))
		return xid
	}
	for _, ended := range []bool{false, true} {
		if ended {
			shared().Query(s.names.sql("UPDATE @waiter SET ends = asked + 1"))
		}
		before := lockedBy()
		n, err := s.Prune(t.Context(), 0)
		testkit.Must(t, err)
		if (n == 1) != ended || lockedBy() != before {
			t.Errorf("a place that has ended: %v; %d removed, the key's row was locked by %s and then by %s", ended, n, before, lockedBy())
		}
	}
	testkit.Check(t, lease.Release())
}
