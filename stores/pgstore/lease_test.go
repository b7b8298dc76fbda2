package pgstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// newLeaser is a program in another language that also takes leases.
func newLeaser(t *testing.T) *application {
	a := newApplication(t)
	shared().Query(strings.NewReplacer("SCHEMA own", "SCHEMA "+a.s.names.schema, " app;", " "+a.s.names.schema+"_app;").Replace(a.s.names.sql(leaseRights)))
	return a
}

// one returns the columns of a row as texts, joined by spaces. NULL is "-".
func (a *application) one(sql string, args ...any) (string, error) {
	a.t.Helper()
	rows, err := a.conn.Query(a.t.Context(), a.s.names.sql(sql), append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		for _, v := range rows.RawValues() {
			if v == nil {
				v = []byte("-")
			}
			all = append(all, string(v))
		}
	}
	return strings.Join(all, " "), rows.Err()
}

func (a *application) must(sql string, args ...any) string {
	a.t.Helper()
	got, err := a.one(sql, args...)
	testkit.Must(a.t, err)
	return got
}

// expire has the lease of a key expire.
func (a *application) expire(key string) {
	a.t.Helper()
	k := `'\x00'::bytea || '` + key + `'`
	shared().Query(a.s.names.sql("UPDATE @key SET ends = since + 1 WHERE k = " + k + "; UPDATE @holder SET ends = since + 1 WHERE NOT abandoned AND k = " + k))
}

// TestClaimBySQL: what programs in other languages read of the answers, as text. TestConformanceBySQL has
// the rules.
func TestClaimBySQL(t *testing.T) {
	t.Parallel()
	a := newLeaser(t)
	mine, other := a.must("SELECT @new_token()"), a.must("SELECT @new_token()")
	if len(mine) != 32 || mine == other {
		t.Fatalf("the tokens %q and %q", mine, other)
	}
	claim := func(want, columns, arguments, token string) {
		t.Helper()
		if got := a.must("SELECT "+columns+" FROM @claim("+arguments+")", token); got != want {
			t.Errorf("%s of claim(%s): %s, want %s", columns, arguments, got, want)
		}
	}
	claim("granted t 1 -", "state, fence > 0, attempt, progress", "'k', $1, '1 minute'", mine)
	claim("held - 0 t", "state, attempt, ahead, remaining BETWEEN '1 s' AND '1 minute'", "'k', $1, '1 minute', place_ttl => '1 minute'", other)
	// A holder that died: the next one knows how many did, and what was saved.
	a.must("SELECT @renew('k', $1, '1 minute', progress => 'half')", mine)
	a.expire("k")
	claim("granted 2 half", "state, attempt, progress", "'k', $1, '1 minute', place_ttl => '1 minute', fingerprint => repeat('a1', 32)", other)
	for range 2 { // sent twice
		a.must("SELECT @release('k', $1, 'answer', keep => '1 hour')", other)
	}
	for fingerprint, want := range map[string]string{"''": "done answer t t", "repeat('a1', 32)": "done answer t t", "repeat('b2', 32)": "mismatch - - -"} {
		claim(want, "state, record, age < '1 minute', remaining > '50 minutes'", "'k', $1, '1 minute', max_age => '1 hour', fingerprint => nullif("+fingerprint+", '')", mine)
	}
	for range 2 { // the grace of a reserved place counts from the first claim that it blocks
		a.must("SELECT @reserve_in('reserved', grace => '1 ms', token => $1)", other)
		a.must("SELECT pg_sleep(0.002)")
		claim("held", "state", "'reserved', $1, '1 minute'", mine)
		a.must("SELECT @release('reserved', $1)", other)
	}
	claim("granted", "state", "'waited for', $1, '1 minute'", mine)
	claim("held", "state", "'waited for', $1, '1 minute', place_ttl => '1 minute'", other)
	testkit.Must(t, a.transaction(a.entry("waited for"), "SELECT @settle_in('waited for', '"+mine+"', 'x')"))
	a.must("SELECT @release('waited for', $1, 'x')", mine) // sent again, otherwise
	claim("granted", "state", "'owned', $1, '1 minute', owner => 'web-1 7 leader'", mine)
	for e, err := range a.s.List(t.Context(), store.Query{Name: "owned"}) {
		if want := (store.Owner{Host: "web-1", PID: 7, Label: "leader"}); err != nil || e.Runs[0].Owner != want {
			t.Errorf("%+v, %v", e, err)
		}
	}
}

// TestLeaseRefused: what no store accepts is refused, and what is lost is said to be.
func TestLeaseRefused(t *testing.T) {
	t.Parallel()
	a := newLeaser(t)
	token := a.must("SELECT @new_token()")
	a.must("SELECT * FROM @claim('k', $1, '1 minute')", token)
	zero, other := strings.Repeat("0", 32), "'"+a.must("SELECT @new_token()")+"'"
	long := a.must("SELECT @new_token()")
	if got := a.must("SELECT state FROM @claim('long', $1, '2562047 hours 47 minutes 16.854775 s', max_age => '2562047 hours 47 minutes 16.854775 s')", long); got != "granted" {
		t.Errorf("the longest durations: %s", got)
	}
	mine := "'" + token + "'"
	for call, want := range map[string]string{
		"claim('k', " + mine + ", '0')":                                                   "22023 ttl is 00:00:00",
		"claim('k', " + mine + ", NULL)":                                                  "22023 ttl is NULL",
		"claim('k', " + mine + ", '-1 s')":                                                "22023 ttl",
		"claim('k', " + mine + ", '300 years')":                                           "22023 ttl",
		"claim('k', " + mine + ", '1 s', place_ttl => '0.5 ms')":                          "22023 place_ttl",
		"claim('k', " + mine + ", '1 s', permits => 0)":                                   "22023 permits is 0",
		"claim('k', " + mine + ", '1 s', permits => 65537)":                               "22023 permits is 65537",
		"claim('k', " + mine + ", '1 s', permits => NULL)":                                "22023 permits",
		"claim('k', " + mine + ", '1 s', permits => 2, weight => 3)":                      "22023 weight 3",
		"claim('k', " + mine + ", '1 s', permits => 2, weight => 0)":                      "22023 weight 0",
		"claim('k', " + mine + ", '1 s', weight => NULL)":                                 "22023 weight",
		"claim('k', " + mine + ", '1 s', permits => 2, at_most_once => true)":             "22023 at_most_once",
		"claim('k', " + mine + ", '1 s', at_most_once => NULL)":                           "22023 at_most_once",
		"claim('k', " + mine + ", '1 s', max_age => '-1 s')":                              "22023 max_age",
		"claim('k', " + mine + ", '1 s', max_age => NULL)":                                "22023 max_age",
		"claim('k', " + mine + ", '1 s', max_age => '300 years')":                         "22023 max_age",
		"claim('k', " + mine + ", '1 s', fingerprint => 'abc')":                           "22023 fingerprint",
		"claim('k', " + mine + ", '1 s', owner => NULL)":                                  "22023 owner",
		"claim('k', " + mine + ", '1 s', format => 'hex')":                                "22023 text or base64",
		"claim('k', " + mine + ", '1 s', namespace => 'a b')":                             "22023 printable ASCII",
		"claim('k', '" + zero + "', '1 s')":                                               "22023 zero",
		"claim('k', 'me', '1 s')":                                                         "22023 32 hexadecimal digits",
		"claim('', " + mine + ", '1 s')":                                                  "22023 0 bytes",
		"claim(repeat('k', 513), " + mine + ", '1 s')":                                    "22023 513 bytes",
		"renew('k', " + mine + ", '0')":                                                   "22023 ttl",
		"renew('k', " + mine + ", '1 s', progress => repeat('x', 1048577))":               "22023 1048577 bytes",
		"renew('k', " + other + ", '1 s')":                                                "DIBS1 does not hold",
		"renew('other', " + mine + ", '1 s')":                                             "DIBS1 no such key",
		"release('k', " + other + ")":                                                     "DIBS1 does not hold",
		"release('other', " + mine + ")":                                                  "DIBS1 no such key",
		"release('k', " + mine + ", outcome => 'keep')":                                   "22023 outcome",
		"release('k', " + mine + ", outcome => '')":                                       "22023 outcome",
		"release('k', " + mine + ", outcome => NULL)":                                     "22023 outcome",
		"release('k', " + mine + ", 'x', outcome => 'undo')":                              "22023 outcome",
		"release('k', " + mine + ", 'x', keep => '0')":                                    "22023 keep",
		"release('k', " + mine + ", 'x', keep => NULL)":                                   "22023 keep",
		"release('aGVsZA==', " + mine + ", repeat('eHh4', 22369622), format => 'base64')": "22023 at most 67108864",
		"hold_in('k', " + other + ")":                                                     "DIBS1 does not hold",
		"hold_in('other', " + mine + ")":                                                  "DIBS1 no such key",
		"hold_in('k', " + mine + ", namespace => 'shop')":                                 "DIBS1 namespace",
		"hold_in('k', NULL)":                                                              "22023 32 hexadecimal digits",
		"hold_in(NULL, " + mine + ")":                                                     "22023 0 bytes",
	} {
		_, err := a.one("SELECT @" + call)
		state, says, _ := strings.Cut(want, " ")
		e, _ := err.(*pgconn.PgError)
		if e == nil || e.Code != state || !strings.Contains(e.Message+" "+e.Detail, says) {
			t.Errorf("%.80s: %v, want %s", call, err, want)
		}
	}
	if got := a.must("SELECT @hold_in('k', $1) > 0", token); got != "t" { // the lease stands
		t.Errorf("hold_in: %s", got)
	}
	for _, level := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
		for _, call := range []string{"claim('k', " + mine + ", '1 s')", "claim('k', " + mine + ", '1 s', permits => 2)", "renew('k', " + mine + ", '1 s')", "release('k', " + mine + ")"} {
			if err := a.transaction("SET TRANSACTION ISOLATION LEVEL "+level, "SELECT @"+call); code(err) != "25000" {
				t.Errorf("%s at %s: %v", call, level, err)
			}
		}
	}
	if _, err := a.conn.Exec(t.Context(), a.s.names.sql("SELECT FROM @lease")); code(err) != "42501" {
		t.Errorf("reading the leases: %v, want that it is forbidden", err)
	}
}

// TestExecuteByName: a user without EXECUTE cannot call the public functions, and what the store in
// Go needs is not among them.
func TestExecuteByName(t *testing.T) {
	t.Parallel()
	a := newApplication(t) // which may settle_in and reserve_in only
	for _, call := range []string{"new_token()", "claim('k', '', '1 s')", "renew('k', '', '1 s')", "release('k', '')", "hold_in('k', '')"} {
		if _, err := a.one("SELECT @" + call); code(err) != "42501" {
			t.Errorf("%s: %v, want that it is forbidden", call, err)
		}
	}
}

// TestReleaseWakes: what ends a lease by SQL pushes the key to a waiter of a process in Go, or has it
// ask.
func TestReleaseWakes(t *testing.T) {
	t.Parallel()
	a := newLeaser(t)
	woken := make(chan engine.WakeUp, 9)
	t.Cleanup(a.s.Notify(func(token store.Token, answer store.Answer) { woken <- engine.WakeUp{Token: token, Answer: answer} }))
	queue := func(key string) store.Claim {
		return store.Claim{Key: store.Key{Name: key}, Token: store.NewToken(), Mode: store.Queue, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}
	}
	sqltest.Hold(t, a.s, "another")
	another := queue("another")
	testkit.Eventually(t, "the store listens", func() bool {
		sqltest.Ask(t, a.s, another)
		return a.s.subscriber.process.Load() != 0
	})
	for name, test := range map[string]struct {
		end  string
		want store.State
	}{
		"released":  {"SELECT @release($1, $2)", store.Granted},
		"abandoned": {"SELECT @release($1, $2, outcome => 'abandon')", 0},
		"kept":      {"SELECT @release($1, $2, 'x')", 0},
		"expired":   {"SELECT @claim($1, @new_token(), '1 s', weight => length($2) / 32)", 0},
	} {
		token, waiter := a.must("SELECT @new_token()"), queue(name)
		a.must("SELECT * FROM @claim($1, $2, '1 hour')", name, token)
		sqltest.Ask(t, a.s, waiter)
		if name == "expired" {
			a.expire(name)
		}
		a.must(test.end, name, token)
		var got engine.WakeUp
		for got.Token != waiter.Token { // others may be woken again
			got = testkit.Await(t, name+": it is woken", woken)
		}
		if got.Answer.State != test.want {
			t.Errorf("%s: %+v, want %v", name, got, test.want)
		}
		if got := sqltest.Ask(t, a.s, waiter); got.State != store.Granted {
			t.Errorf("%s: then %v", name, got.State)
		}
	}
}

// TestUpgrade: the migration of a store of version 1 keeps its leases and the rights of its users,
// and leaves no function of before.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	o := &Options{Schema: testkit.Own()}
	old := namer{schema: o.Schema, prefix: "dibs"}
	shared().Query("CREATE SCHEMA " + o.Schema)
	all, err := Migrations(o)
	testkit.Must(t, err)
	shared().Query(all[0].SQL)
	before := strings.NewReplacer("_all(", "(").Replace(string(must(sources.ReadFile("sql/plain.sql"))))
	shared().Query(old.sql(before) + old.source("transaction") + old.source("prune"))
	role := o.Schema + "_app"
	shared().Query("CREATE ROLE " + role + "; GRANT EXECUTE ON FUNCTION " + o.Schema + ".dibs_settle_in TO " + role)
	token := store.NewToken()
	shared().Query(old.sql(fmt.Sprintf(`SELECT @claim(ARRAY['\x006b'::bytea], ARRAY[0], ARRAY['\x%x'::bytea], ARRAY[60000000], ARRAY[0], ARRAY[0], ARRAY[false], ARRAY[''::bytea], ARRAY[''::bytea], 0, 9)`, token[:])))
	atVersion(t, shared().URL(), o.Schema, 1)
	if _, err := Open(t.Context(), shared().URL(), o); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("a store of version 1: %v", err)
	}
	s := open(t, shared().URL(), o)
	atVersion(t, shared().URL(), o.Schema, version)
	if got := shared().Query(old.sql(fmt.Sprintf("SELECT @hold_in('k', '%x') > 0", token[:])))[0][0]; got != "t" {
		t.Errorf("the lease of before: %s", got)
	}
	testkit.Check(t, sqltest.Settle(t, s, store.Settlement{Key: store.Key{Name: "k"}, Token: token}))
	for function, n := range map[string]string{"dibs_claim": "1", "dibs_renew": "1", "dibs_settle": "0", "dibs_claim_all": "1"} {
		if got := shared().Query("SELECT count(*) FROM pg_proc WHERE pronamespace = '" + o.Schema + "'::regnamespace AND proname = '" + function + "'")[0][0]; got != n {
			t.Errorf("%s functions have the name %s, want %s", got, function, n)
		}
	}
	if got := shared().Query("SELECT has_function_privilege('" + role + "', p.oid, 'EXECUTE') FROM pg_proc p WHERE p.pronamespace = '" + o.Schema + "'::regnamespace AND p.proname = 'dibs_settle_in'")[0][0]; got != "t" {
		t.Error("the user of before lost its right")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestFullQueueBySQL: a queue of 100,000 places takes no more, whether the key is plain or not.
func TestFullQueueBySQL(t *testing.T) {
	t.Parallel()
	a := newLeaser(t)
	for _, permits := range []int{1, 2} {
		key := fmt.Sprint("full ", permits)
		a.hold(store.Claim{Key: store.Key{Name: key}, Permits: permits})
		shared().Query(a.s.names.sql(fmt.Sprintf(`INSERT INTO @waiter (k, seq, token, kind, ends, owner, ttl, permits, weight, once, max_age, process, fingerprint, grace, asked)
			SELECT '\x00'::bytea || '%s', n - 100000, decode(lpad(to_hex(n), 32, '0'), 'hex'), 0, @now() + 3600000000, '', 1000000, 1, 1, false, 0, 0, '', 0, 0
			FROM generate_series(1, 99999) AS n; UPDATE @key SET busy = true`, key)))
		last := a.must("SELECT @new_token()")
		claim := "SELECT state, ahead FROM @claim($1, $2, '1 minute', place_ttl => '1 minute', permits => $3, weight => $3)"
		for range 2 { // the second claim keeps the place of the first
			if got := a.must(claim, key, last, permits); got != "held 99999" {
				t.Errorf("%s: the last place: %s", key, got)
			}
		}
		if got, err := a.one(claim, key, a.must("SELECT @new_token()"), permits); code(err) != "DIBS5" {
			t.Errorf("%s: one more: %s, %v; want DIBS5", key, got, err)
		}
	}
}
