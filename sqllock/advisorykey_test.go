package sqllock

import (
	"errors"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
