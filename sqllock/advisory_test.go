package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// newAdvisory returns an Advisory on a pool of its own.
func newAdvisory(t testing.TB, o *AdvisoryOptions) *Advisory {
	t.Helper()
	a, err := NewAdvisory(t.Context(), postgresDB(t), o)
	testkit.Must(t, err)
	return a
}

// advisoryLocks counts the sessions that have the lock, or wait for it.
func advisoryLocks(t testing.TB, key AdvisoryKey) int {
	t.Helper()
	class, object, sub := key.inLocks()
	rows := postgres().Query(fmt.Sprintf(
		"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = %d AND objid = %d AND objsubid = %d", class, object, sub))
	return len(rows)
}

// ownKey returns a key that no other test of this run has.
func ownKey() AdvisoryKey { return NameKey("test", testkit.Own()) }

func TestAdvisoryShared(t *testing.T) {
	t.Parallel()
	a, key := newAdvisory(t, nil), ownKey()
	shared := &LockOptions{Shared: true}
	err := a.Do(t.Context(), key, shared, func(context.Context) error {
		return a.TryDo(t.Context(), key, shared, func(context.Context) error {
			_, err := a.TryLock(t.Context(), key, nil)
			return err
		})
	})
	if !errors.Is(err, dibs.ErrHeld) {
		t.Errorf("beside two shared holders: %v", err)
	}
	err = a.TryDo(t.Context(), key, nil, func(context.Context) error {
		if _, err := a.TryLock(t.Context(), key, shared); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("beside a holder: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Errorf("after the shared holders: %v", err)
	}
}

// A wait ends when it is to, and leaves nothing behind.
func TestAdvisoryWait(t *testing.T) {
	t.Parallel()
	a, b, key := newAdvisory(t, nil), newAdvisory(t, nil), ownKey()
	l, err := a.Lock(t.Context(), key, nil)
	testkit.Must(t, err)
	const wait = 50 * time.Millisecond
	for _, other := range []*Advisory{a, b} { // waits in this process, and in the server
		waited(t, wait, func() error {
			_, err := other.Lock(t.Context(), key, &LockOptions{Wait: wait})
			return err
		})
	}
	// The connection that waited is in the pool again, as it was.
	b.db.SetMaxOpenConns(1)
	var setting string
	if err := b.db.QueryRowContext(t.Context(), "SELECT current_setting('lock_timeout')").Scan(&setting); err != nil || setting != "0" {
		t.Errorf("lock_timeout is %q, %v", setting, err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("enough"))
	defer cancel()
	if _, err := b.Lock(ctx, key, nil); err == nil || errors.Is(err, dibs.ErrHeld) {
		t.Errorf("a context that ends: %v", err)
	}
	testkit.Check(t, l.Unlock())
	testkit.Eventually(t, "nothing is left", func() bool { return advisoryLocks(t, key) == 0 })
	if _, err := b.Lock(t.Context(), key, &LockOptions{Wait: -1}); err == nil {
		t.Error("a negative wait was accepted")
	}
}

// waited fails the test unless the lock is held, and was waited for so long at least.
func waited(t *testing.T, wait time.Duration, lock func() error) {
	t.Helper()
	start := time.Now()
	err := lock()
	took := time.Since(start)
	if held, ok := errors.AsType[*HeldError](err); !ok || held.Waited < wait || took < wait {
		t.Errorf("Wait %v: %v after %v", wait, err, took)
	}
}

// What a wait that was given up may have left in its session is given up too, and a
// server is not asked to give up what is not there: it would log that.
func TestAdvisoryUndo(t *testing.T) {
	t.Parallel()
	a := newAdvisory(t, nil)
	conn, err := a.db.Conn(t.Context())
	testkit.Must(t, err)
	defer conn.Close()
	functions := &advisoryFunctions{}
	for _, key := range []AdvisoryKey{ownKey(), PairKey(-1, int32(owned.Add(1)))} {
		for _, shared := range []bool{false, true} {
			mustExec(t, conn, "SELECT "+function("pg_advisory_lock", shared)+"("+key.String()+")")
			for range 2 {
				testkit.Check(t, functions.undo(t.Context(), conn, key, shared))
			}
			if n := advisoryLocks(t, key); n != 0 {
				t.Errorf("%v, shared %v: %d have it still", key, shared, n)
			}
		}
	}
	if strings.Contains(postgres().Log(), "you don't own a lock") {
		t.Error("the server logged that it was asked for what was not there")
	}
}

// The limit that a role has for its statements ends a wait, and says so.
func TestAdvisoryStatementTimeout(t *testing.T) {
	t.Parallel()
	key, limited := ownKey(), newAdvisory(t, nil)
	l, err := newAdvisory(t, nil).Lock(t.Context(), key, nil)
	testkit.Must(t, err)
	limited.db.SetMaxOpenConns(1)
	if _, err := limited.db.ExecContext(t.Context(), "SET statement_timeout = 100"); err != nil {
		t.Fatal(err)
	}
	if _, err := limited.Lock(t.Context(), key, nil); !errors.Is(err, ErrServer) || sqlState(err) != "57014" {
		t.Errorf("at the limit: %v", err)
	}
	testkit.Check(t, l.Unlock())
	if n := advisoryLocks(t, key); n != 0 {
		t.Errorf("%d have it still", n)
	}
}

func mustExec(t testing.TB, c *sql.Conn, query string) {
	t.Helper()
	if _, err := c.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

// The shortest wait gets a lock that is free.
func TestAdvisoryShortWait(t *testing.T) {
	t.Parallel()
	a, o := newAdvisory(t, nil), &LockOptions{Wait: time.Nanosecond}
	for range 20 {
		testkit.Check(t, a.Do(t.Context(), ownKey(), o, func(context.Context) error { return nil }))
	}
}

// An exhausted pool is not a lock that is held.
func TestAdvisoryExhaustedPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &fakeServer{query: func(query string, _ []driver.NamedValue) ([]driver.Value, error) {
			if query == "SELECT 1" {
				return []driver.Value{int64(1)}, nil
			}
			return []driver.Value{true}, nil
		}}
		db := server.open(t)
		db.SetMaxOpenConns(1)
		a := &Advisory{db: db, sessions: sessions[AdvisoryKey]{db: db, functions: &advisoryFunctions{}, heartbeat: time.Second}}
		l, err := a.Lock(t.Context(), IntKey(1), &LockOptions{Wait: time.Minute})
		testkit.Must(t, err)
		_, err = a.Lock(t.Context(), IntKey(2), &LockOptions{Wait: 20 * time.Millisecond})
		if !errors.Is(err, ErrServer) || errors.Is(err, dibs.ErrHeld) {
			t.Errorf("a pool without connections: %v", err)
		}
		testkit.Check(t, l.Unlock())
	})
}

func TestAdvisoryOptions(t *testing.T) {
	t.Parallel()
	_, err := NewAdvisory(t.Context(), postgresDB(t), &AdvisoryOptions{Heartbeat: -1})
	if err == nil {
		t.Error("a negative heartbeat was accepted")
	}
	db := openDB(t, "pgx", "postgres://nobody@127.0.0.1:1/none?connect_timeout=2")
	if _, err := NewAdvisory(t.Context(), db, nil); !errors.Is(err, ErrServer) {
		t.Errorf("no server: %v", err)
	}
}

// Computed by Python: zlib.crc32(name) & 0x7fffffff, and hashlib.sha256.
func TestAdvisoryKeyVectors(t *testing.T) {
	tests := []struct {
		key  AdvisoryKey
		want string
	}{
		{RubyKey("", ""), "0, 0"},
		{RubyKey("", "a"), "1756872259, 0"},
		{RubyKey("", "foo"), "208889121, 0"},
		{RubyKey("", "create_order"), "1103555577, 0"},
		{RubyKey("", "with space"), "2137026449, 0"},
		{RubyKey("", "Ünïcode"), "2009020156, 0"},
		{RubyKey("", "order 7"), "1014932631, 0"},
		{RubyKey("", "123456789"), "1274296614, 0"},
		{RubyKey("42", "foo"), "208889121, 42"},
		{RubyKey("app", "foo"), "208889121, 0"},
		{RubyKey(" \t-1", "foo"), "208889121, 2147483647"},
		{RubyKey("+7up", "foo"), "208889121, 7"},
		{RubyKey("1_000__9", "foo"), "208889121, 1000"},
		{RubyKey("_1", "foo"), "208889121, 0"},
		{RubyKey("2147483648", "foo"), "208889121, 0"},
		{RubyKey("99999999999999999999", "foo"), "208889121, 1661992959"},
		{NameKey("", ""), "2061602718966175725"},
		{NameKey("", "a"), "-3205724327866171527"},
		{NameKey("", "A"), "8902127490109627760"},
		{NameKey("app", "order 7"), "770612779742920401"},
		{NameKey("a", "b"), "-8371378101107660478"},
		{NameKey("ab", ""), "3249946796396913068"},
		{IntKey(-1), "-1"},
		{PairKey(-1, 1), "-1, 1"},
		{PairKey(1, -1), "1, -1"},
	}
	for _, test := range tests {
		if got := test.key.String(); got != test.want {
			t.Errorf("got %s; want %s", got, test.want)
		}
	}
	if PairKey(0, 7) == IntKey(7) {
		t.Error("a pair is a number")
	}
}

// alike are names that folding, trimming or cutting could make equal.
func alike() []string {
	long := strings.Repeat("x", 2000)
	return []string{
		"order", "Order", "ORDER", "order ", " order", "order\x00", "orde", "", "ordér", "orde\u0301r", "\xff", "\xfe",
		long, long + "x", long + "X", long[:64], long[:63], long[:65],
	}
}

// Names that differ only by case, length or schema never meet.
func TestAdvisoryNamesNeverMeet(t *testing.T) {
	t.Parallel()
	a := newAdvisory(t, nil)
	own := testkit.Own()
	var keys []AdvisoryKey
	seen := map[AdvisoryKey]bool{}
	for _, schema := range []string{own, own + "2", strings.ToUpper(own), ""} {
		for _, name := range alike() {
			if schema == "" {
				name = own + name // as one string it is that of another pair
			}
			key := NameKey(schema, name)
			if seen[key] {
				t.Errorf("%q in %q meets another one", name, schema)
			}
			seen[key] = true
			keys = append(keys, key)
		}
	}
	l, err := a.LockAll(t.Context(), keys[1:], nil)
	testkit.Must(t, err)
	if held, err := a.Held(t.Context(), keys[0]); held || err != nil {
		t.Errorf("another one is held: %v, %v", held, err)
	}
	testkit.Check(t, l.Unlock())
	// Another database, with the same name of everything.
	postgres().Query("CREATE DATABASE " + own)
	there, err := NewAdvisory(t.Context(), openDB(t, "pgx", strings.Replace(postgres().URL(), "/postgres?", "/"+own+"?", 1)), nil)
	testkit.Must(t, err)
	l, err = a.Lock(t.Context(), keys[0], nil)
	testkit.Must(t, err)
	defer l.Unlock()
	if held, err := there.Held(t.Context(), keys[0]); held || err != nil {
		t.Errorf("held in another database: %v, %v", held, err)
	}
	l, err = there.TryLock(t.Context(), keys[0], nil)
	testkit.Must(t, err)
	testkit.Check(t, l.Unlock())
}

// The lock is the one that the gem's own statement takes.
func TestRubyKeyMeetsRuby(t *testing.T) {
	t.Parallel()
	a := newAdvisory(t, nil)
	key := RubyKey("7", "create_order")
	ruby, err := a.db.Conn(t.Context())
	testkit.Must(t, err)
	defer ruby.Close()
	mustExec(t, ruby, "SELECT pg_try_advisory_lock(1103555577,7) AS t0123 /* create_order */")
	if _, err := a.TryLock(t.Context(), key, nil); !errors.Is(err, dibs.ErrHeld) {
		t.Errorf("while Ruby has it: %v", err)
	}
	mustExec(t, ruby, "SELECT pg_advisory_unlock(1103555577,7)")
	l, err := a.TryLock(t.Context(), key, nil)
	testkit.Must(t, err)
	defer l.Unlock()
	var got bool
	if err := ruby.QueryRowContext(t.Context(), "SELECT pg_try_advisory_lock(1103555577,7)").Scan(&got); err != nil || got {
		t.Errorf("while Go has it Ruby gets: %v, %v", got, err)
	}
}
