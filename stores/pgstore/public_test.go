package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// application is a program in another language: a connection of a role with few rights, that
// knows settle_in and reserve_in only.
type application struct {
	*bank
	t    *testing.T
	conn *pgx.Conn
}

func newApplication(t *testing.T) *application {
	b := newBank(t, shared().URL(), &Options{PruneEvery: -1}) // leases that have expired stay
	role := b.s.names.schema + "_app"
	rights := strings.NewReplacer("SCHEMA own", "SCHEMA "+b.s.names.schema, " app;", " "+role+";").Replace(b.s.names.sql(transactionRights))
	shared().Query(fmt.Sprintf("CREATE ROLE %[1]s LOGIN; %[2]s GRANT INSERT ON %[3]s TO %[1]s", role, rights, b.ledger))
	conn, err := pgx.Connect(t.Context(), strings.Replace(shared().URL(), "//postgres@", "//"+role+"@", 1))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &application{b, t, conn}
}

// transaction carries SQL out, with the store's names, and commits if all of it succeeds.
func (a *application) transaction(sql ...string) error {
	a.t.Helper()
	return pgx.BeginFunc(a.t.Context(), a.conn, func(tx pgx.Tx) error {
		for _, text := range sql {
			if _, err := tx.Exec(a.t.Context(), a.s.names.sql(text)); err != nil {
				return err
			}
		}
		return nil
	})
}

// hold claims a key and returns its token.
func (a *application) hold(c store.Claim) string {
	a.t.Helper()
	if c.TTL == 0 {
		c.TTL = time.Minute
	}
	c.Token, c.Permits, c.Weight = store.NewToken(), max(c.Permits, 1), 1
	if answer := sqltest.Ask(a.t, a.s, c); answer.State != store.Granted {
		a.t.Fatalf("%+v", answer)
	}
	return fmt.Sprintf("%x", c.Token[:])
}

// record returns the record of a key, or "none".
func (a *application) record(k store.Key) string {
	a.t.Helper()
	answer := sqltest.Ask(a.t, a.s, store.Claim{Key: k, Token: store.NewToken(), Mode: store.Look, Permits: 1, Weight: 1, MaxAge: store.AnyAge})
	if answer.State == store.Done {
		return string(answer.Record.Data)
	}
	return "none"
}

// TestSettleInBySQL: an effect and its record are committed together by plain SQL, as text and as
// bytes, and a lease without a record is released.
func TestSettleInBySQL(t *testing.T) {
	t.Parallel()
	a := newApplication(t)
	for name, test := range map[string]struct {
		key    store.Key
		call   string // %s is the token
		record string
	}{
		"text":      {store.Key{Name: "order é\\"}, "'order é\\', '%s', '{\"value\":\"a\\\\b\"}'", `{"value":"a\\b"}`},
		"named":     {store.Key{Namespace: "shop", Name: "n"}, "key => 'n', namespace => 'shop', token => '%s', data => '7', keep => '1 hour'", "7"},
		"bytes":     {store.Key{Name: "\xff\x00"}, "'/wA=', '%s', 'AP8=', format => 'base64'", "\x00\xff"},
		"empty":     {store.Key{Name: "e"}, "'e', '%s', ''", ""},
		"uppercase": {store.Key{Name: "u"}, "'u', upper('%s'), 'x'", "x"},
		"released":  {store.Key{Name: "r"}, "'r', '%s'", "none"},
	} {
		token := a.hold(store.Claim{Key: test.key})
		if err := a.transaction(a.entry(name), "SELECT @settle_in("+fmt.Sprintf(test.call, token)+")"); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := a.record(test.key); got != test.record || a.entries(t, name) != 1 {
			t.Errorf("%s: the record %q and %d entries, want %q and 1", name, got, a.entries(t, name), test.record)
		}
		if test.record == "none" {
			a.hold(store.Claim{Key: test.key}) // at once
		}
	}
	if _, err := a.conn.Exec(t.Context(), a.s.names.sql("SELECT FROM @key")); code(err) != "42501" {
		t.Errorf("reading the table: %v, want that it is forbidden", err)
	}
}

// TestOnceBySQL: what Once keeps and what SQL keeps are the same.
func TestOnceBySQL(t *testing.T) {
	t.Parallel()
	a := newApplication(t)
	token := a.hold(store.Claim{Key: a.client.Key("k")})
	testkit.Must(t, a.transaction(a.entry("k"), "SELECT @settle_in('k', '"+token+"', '{\"value\":17}')"))
	got, err := dibs.Once(t.Context(), a.client, "k", nil, func(context.Context) (int, error) { return 0, errors.New("it runs again") })
	if got != 17 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
}

// TestSettleInRefused: what cannot be settled has an error of its own, and the effect is rolled back.
func TestSettleInRefused(t *testing.T) {
	t.Parallel()
	a := newApplication(t)
	never := strings.Repeat("0", 32)
	held := a.hold(store.Claim{Key: store.Key{Name: "held"}})
	expired := a.hold(store.Claim{Key: store.Key{Name: "expired"}})
	shared().Query(a.s.names.sql("UPDATE @key SET ends = since + 1 WHERE k = '\\x00'::bytea || 'expired'"))
	settled := a.hold(store.Claim{Key: store.Key{Name: "settled"}})
	testkit.Must(t, a.transaction(a.entry("before"), "SELECT @settle_in('settled', '"+settled+"', 'x')"))
	several := a.hold(store.Claim{Key: store.Key{Name: "several"}, Permits: 3})
	other := a.hold(store.Claim{Key: store.Key{Name: "other", Namespace: "shop"}})
	for name, test := range map[string]struct{ call, state, says string }{
		"another token":      {"'held', '" + never + "', 'x'", "DIBS1", "does not hold the key"},
		"expired":            {"'expired', '" + expired + "', 'x'", "DIBS1", "It has expired"},
		"settled":            {"'settled', '" + settled + "', 'x'", "DIBS1", "settled before"},
		"another namespace":  {"'other', '" + other + "', 'x'", "DIBS1", "another store (database, schema, prefix) or namespace"},
		"several permits":    {"'several', '" + several + "', 'x'", "DIBS4", "several permits"},
		"no token":           {"'held', 'me', 'x'", "22023", "32 hexadecimal digits"},
		"token is NULL":      {"'held', NULL, 'x'", "22023", "32 hexadecimal digits"},
		"no key":             {"'', '" + held + "', 'x'", "22023", "has 0 bytes"},
		"key is NULL":        {"NULL, '" + held + "', 'x'", "22023", "has 0 bytes"},
		"long key":           {"repeat('k', 513), '" + held + "', 'x'", "22023", "has 513 bytes"},
		"namespace":          {"'held', '" + held + "', 'x', namespace => 'a b'", "22023", "printable ASCII"},
		"format":             {"'held', '" + held + "', 'x', format => 'hex'", "22023", "text or base64"},
		"not base64":         {"'aGVsZA==', '" + held + "', '%', format => 'base64'", "22023", "base64"},
		"keep":               {"'held', '" + held + "', 'x', keep => '0'", "22023", "at least 1 ms"},
		"keep too long":      {"'held', '" + held + "', 'x', keep => '1000000 years'", "22023", "292 years"},
		"large record":       {"'held', '" + held + "', repeat('x', 250000000)", "22023", "at most 67108864"},
		"large bytes":        {"'held', '" + held + "', repeat('eHh4', 22369622), format => 'base64'", "22023", "at most 67108864"},
		"proof":              {"'held', '" + held + "', 'x', proof => 'mine'", "22023", "marked, deferrable or caller"},
		"not marked":         {"'held', '" + held + "', 'x', proof => 'marked'", "DIBS2", "not the transaction"},
		"no such function":   {"'held'", "42883", "settle_in"},
		"released, no token": {"'held', '" + never + "'", "DIBS1", "does not hold the key"},
	} {
		err := a.transaction(a.entry(name), "SELECT @settle_in("+test.call+")")
		e, _ := errors.AsType[*pgconn.PgError](err)
		if e == nil || e.Code != test.state || !strings.Contains(e.Message+" "+e.Detail, test.says) {
			t.Errorf("%s: %v, want %s %q", name, err, test.state, test.says)
		}
		if n := a.entries(t, name); n != 0 {
			t.Errorf("%s: %d entries", name, n)
		}
	}
	// The leases stand, and a lease of several permits can be released.
	testkit.Check(t, a.transaction(a.entry("held"), "SELECT @settle_in('held', '"+held+"', 'x')"))
	testkit.Check(t, a.transaction(a.entry("several"), "SELECT @settle_in('several', '"+several+"')"))
}

// TestSettleInOldSnapshot: a transaction whose snapshot is older than the claim does not see the
// lease. The error says that, and not that the lease is lost.
func TestSettleInOldSnapshot(t *testing.T) {
	t.Parallel()
	a := newApplication(t)
	a.hold(store.Claim{Key: store.Key{Name: "shared"}, Permits: 2})
	for _, permits := range []int{1, 2} {
		for _, level := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
			key := map[int]string{1: level, 2: "shared"}[permits]
			tx, err := a.conn.Begin(t.Context())
			testkit.Must(t, err)
			_, err = tx.Exec(t.Context(), "SET TRANSACTION ISOLATION LEVEL "+level)
			testkit.Must(t, err)
			_, err = tx.Exec(t.Context(), a.s.names.sql(a.entry(key))) // which takes the snapshot
			testkit.Must(t, err)
			token := a.hold(store.Claim{Key: store.Key{Name: key}, Permits: permits})
			_, err = tx.Exec(t.Context(), a.s.names.sql("SELECT @settle_in('"+key+"', '"+token+"')"))
			if code(err) != "40001" || permits == 1 && !strings.Contains(err.Error(), "older than the claim") {
				t.Errorf("%s, %d permits: %v", level, permits, err)
			}
			testkit.Must(t, tx.Rollback(t.Context()))
			testkit.Check(t, a.transaction("SET TRANSACTION ISOLATION LEVEL "+level, a.entry(key), "SELECT @settle_in('"+key+"', '"+token+"')"))
			// What is lost is still said to be lost.
			if err := a.transaction("SET TRANSACTION ISOLATION LEVEL "+level, a.entry(key), "SELECT @settle_in('"+key+"', '"+token+"')"); code(err) != stateLost {
				t.Errorf("%s, %d permits, settled: %v", level, permits, err)
			}
		}
	}
}

// TestSettleInOutside: a statement that commits by itself does not settle, because the effect is
// in another transaction. A transaction that writes nothing has to be marked.
func TestSettleInOutside(t *testing.T) {
	t.Parallel()
	a := newApplication(t)
	token := a.hold(store.Claim{Key: store.Key{Name: "k"}})
	settle := "SELECT @settle_in('k', '" + token + "', 'x'%s)"
	for name, try := range map[string]func() error{
		"alone": func() error {
			_, err := a.conn.Exec(t.Context(), a.s.names.sql(fmt.Sprintf(settle, "")))
			return err
		},
		"alone, simple protocol": func() error {
			_, err := a.conn.Exec(t.Context(), a.s.names.sql(fmt.Sprintf(settle, "")), pgx.QueryExecModeSimpleProtocol)
			return err
		},
		"nothing written": func() error { return a.transaction("SELECT 1", fmt.Sprintf(settle, "")) },
		"begun anew": func() error {
			return a.transaction("SET LOCAL dibs.run = 'on'", a.entry("begun anew"), "COMMIT", "BEGIN", fmt.Sprintf(settle, ", proof => 'marked'"))
		},
	} {
		if err := try(); code(err) != stateEnded {
			t.Errorf("%s: %v, want %s", name, err, stateEnded)
		}
	}
	testkit.Check(t, a.transaction("SET LOCAL dibs.run = 'on'", fmt.Sprintf(settle, ", proof => 'marked'")))
	token = a.hold(store.Claim{Key: store.Key{Name: "k"}})
	if err := a.transaction("SELECT @settle_in('k', '" + token + "', 'y', proof => 'caller')"); err != nil || a.record(store.Key{Name: "k"}) != "y" {
		t.Errorf("%v, %q", err, a.record(store.Key{Name: "k"}))
	}
}

// TestSettleInWakes: a waiter gets the key when the transaction commits.
func TestSettleInWakes(t *testing.T) {
	t.Parallel()
	a := newApplication(t)
	token := a.hold(store.Claim{Key: a.client.Key("k")})
	got := make(chan error, 1)
	waiting := make(chan struct{})
	go func() {
		close(waiting)
		lease, err := a.client.Acquire(context.WithoutCancel(t.Context()), "k", nil)
		if err == nil {
			err = lease.Release()
		}
		got <- err
	}()
	<-waiting
	testkit.Eventually(t, "it waits", func() bool { return a.places(t, "k") == 1 })
	testkit.Must(t, a.transaction(a.entry("k"), "SELECT @settle_in('k', '"+token+"')"))
	testkit.Check(t, <-got)
}

// TestReserveInBySQL: a place is there when the transaction commits, its ticket is that of the Go
// library, and what no store accepts is refused.
func TestReserveInBySQL(t *testing.T) {
	t.Parallel()
	a := newApplication(t)
	reserve := func(call string, commit bool) (ticket *string, err error) {
		t.Helper()
		tx, err := a.conn.Begin(t.Context())
		testkit.Must(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		err = tx.QueryRow(t.Context(), a.s.names.sql("SELECT @reserve_in("+call+")")).Scan(&ticket)
		if err == nil && commit {
			err = tx.Commit(t.Context())
		}
		return ticket, err
	}
	if _, err := reserve("'k'", false); err != nil || a.places(t, "k") != 0 {
		t.Errorf("%v, %d places of a transaction that was rolled back", err, a.places(t, "k"))
	}
	var tickets []dibs.Place
	for _, call := range []string{
		"'k', namespace => 'NS'", "encode('k', 'base64'), place_ttl => '1 hour', grace => '1 minute', namespace => 'NS', owner => encode('host 7 job', 'base64'), format => 'base64'",
	} {
		text, err := reserve(strings.ReplaceAll(call, "NS", a.client.Key("k").Namespace), true)
		testkit.Must(t, err)
		var p dibs.Place
		if err := p.UnmarshalText([]byte(*text)); err != nil || p.Key != a.client.Key("k") {
			t.Fatalf("%q is the ticket of %v, %v", *text, p.Key, err)
		}
		tickets = append(tickets, p)
	}
	if tickets[0].Token == tickets[1].Token {
		t.Error("two places have one token")
	}
	for i := range tickets {
		if _, err := a.client.TryRedeem(t.Context(), tickets[1-i], nil); i == 0 && !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("the second place before the first: %v", err)
		}
		lease, err := a.client.Redeem(t.Context(), tickets[i], nil)
		if err == nil {
			err = lease.Release()
		}
		testkit.Must(t, err)
	}
	if n := a.places(t, "k"); n != 0 {
		t.Errorf("%d places are left", n)
	}
	for call, says := range map[string]string{
		"''": "has 0 bytes", "'k', place_ttl => '0'": "at least 1 ms", "'k', place_ttl => NULL": "at least 1 ms", "'k', grace => '-1 s'": "negative",
		"'k', place_ttl => '1000000 years'": "292 years", "'k', grace => '1000000 years'": "292 years", "repeat('k', 513)": "has 513 bytes",
		"'k', token => repeat('0', 32)": "zero", "'k', namespace => repeat('n', 65)": "64 characters", "'%', format => 'base64'": "base64",
		"'k', owner => NULL": "owner", "'k', token => 'x'": "32 hexadecimal digits", "'k', format => NULL": "text or base64",
	} {
		if _, err := reserve(call, true); code(err) != "22023" || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", call, err, says)
		}
	}
	if ticket, err := reserve("'k', store => '"+strings.Repeat("0", 8)+"'", true); err != nil || ticket != nil {
		t.Errorf("the ID of another store: %v, %v", ticket, err)
	}
}
