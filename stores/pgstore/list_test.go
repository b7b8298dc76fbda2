package pgstore

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

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
