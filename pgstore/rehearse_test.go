package pgstore

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/sqltest"
)

// TestRehearsal: once somebody has waited at a reserved place, the connections that are used
// most know what hand-overs take, before there are any; and nothing of that is left.
func TestRehearsal(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), ownNames())
	c := sqltest.Client(t, s, nil)
	lease, err := c.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	place, _, err := c.Reserve(t.Context(), "k", time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	knows := func(conn *pgxpool.Conn, st *statement) bool {
		t.Helper()
		var n int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_prepared_statements WHERE name = $1", pgx.QueryExecModeExec, st.name).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
	warm := func(pool *pgxpool.Pool, st *statement) bool {
		t.Helper()
		n := 0
		for _, conn := range pool.AcquireAllIdle(t.Context()) {
			if knows(conn, st) {
				n++
			}
			conn.Release()
		}
		return n >= rehearsed
	}
	sqltest.Eventually(t, "enough connections are rehearsed", func() bool {
		if _, err := c.Redeem(t.Context(), place, &dibs.AcquireOptions{Wait: time.Millisecond}); !errors.Is(err, dibs.ErrHeld) {
			t.Fatal(err)
		}
		return warm(s.front, s.settlements) && warm(s.back, s.claims) // which are not made there otherwise
	})
	var keys, places int
	if err := s.front.QueryRow(t.Context(), s.names.sql("SELECT (SELECT count(*) FROM @key), (SELECT count(*) FROM @waiter)")).Scan(&keys, &places); err != nil || keys != 1 || places != 1 {
		t.Errorf("%d keys and %d places, %v; want one of each", keys, places, err)
	}
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
}

// TestRehearsalIsWhole: the functions that a hand-over may need are all in it.
func TestRehearsalIsWhole(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), ownNames())
	client := sqltest.Client(t, s, nil)
	lease, err := client.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	untilListening(t, s) // nobody is told of a grant before
	conn, err := s.front.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	counted := func() map[string]int64 {
		t.Helper()
		rows, _ := conn.Query(t.Context(), "SELECT funcname, calls FROM pg_stat_xact_user_functions WHERE left(funcname, $1) = $2",
			pgx.QueryExecModeExec, len(s.names.prefix)+1, s.names.prefix+"_")
		m := map[string]int64{}
		var name string
		var calls int64
		if _, err := pgx.ForEachRow(rows, []any{&name, &calls}, func() error { m[name[len(s.names.prefix)+1:]] = calls; return nil }); err != nil {
			t.Fatal(err)
		}
		return m
	}
	if _, err := conn.Exec(t.Context(), "SET track_functions = 'pl'"); err != nil {
		t.Fatal(err)
	}
	c := conn.Conn().PgConn()
	if err := begin(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := s.live(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	called := counted()
	if err := execute(t.Context(), c, "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"claim", "take_places", "stand_by", "look_on", "load", "store", "decide", "advance", "front", "held", "place", "adopt", "waits",
		"settle", "pass_on", "call_next", "reserved", "admits", "admit", "tell", "give_up", "settle_one", "leave_places", "stand_down",
	} {
		if called[name] == 0 {
			t.Errorf("%s is not among %v", name, slices.Sorted(maps.Keys(called)))
		}
	}
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
}
