package mysqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// ask makes a claim.
func (b *bank) ask(t testing.TB, c store.Claim) store.Answer {
	t.Helper()
	c.Key.Name = "k"
	c.PlaceTTL, c.Permits, c.Weight = time.Minute, max(c.Permits, 1), 1
	if c.TTL == 0 {
		c.TTL = time.Minute
	}
	answers := make([]store.Answer, 1)
	if err := b.s.Claim(t.Context(), []store.Claim{c}, answers); err != nil || answers[0].Err != nil {
		t.Fatal(err, answers[0].Err)
	}
	return answers[0]
}

// hold has a new token hold the key "k".
func (b *bank) hold(t testing.TB, permits int) store.Token {
	t.Helper()
	token := store.NewToken()
	if a := b.ask(t, store.Claim{Token: token, Permits: permits}); a.State != store.Granted {
		t.Fatalf("%+v, want that it is granted", a)
	}
	return token
}

// begin begins a transaction and makes an entry in it.
func (b *bank) begin(t testing.TB, tr store.Transactor) *transaction {
	t.Helper()
	tx, err := tr.Begin(t.Context())
	testkit.Must(t, err)
	t.Cleanup(tx.Rollback)
	own := tx.(*transaction)
	if _, err := own.tx.ExecContext(t.Context(), b.entry("k")); err != nil {
		t.Fatal(err)
	}
	return own
}

// keeps is a settlement of the key "k" that leaves a record.
func keeps(token store.Token) store.Settlement {
	return store.Settlement{Key: store.Key{Name: "k"}, Token: token, Outcome: store.Keep, Data: []byte(`{"value":"answer"}`), Retention: time.Hour}
}

// settleOnly settles in a transaction that is still open then.
func (b *bank) settleOnly(ctx context.Context, tx *transaction, x store.Settlement) error {
	c, err := b.s.settleIn(&x)
	if err != nil {
		return err
	}
	_, err = tx.settle(ctx, c)
	return err
}

// TestCommit: it is committed if the token holds the key, and nothing is done
// otherwise.
func TestCommit(t *testing.T) {
	inEachKind(t, func(t *testing.T, b *bank, tr store.Transactor) {
		set := func(sql string) { b.query(t, b.s.names.sql("UPDATE @key SET "+sql)) }
		for name, test := range map[string]struct {
			permits   int // 1 when 0
			abandoned bool
			before    func(token store.Token)
			is        error // nil: it is committed
		}{
			"keep":             {},
			"release":          {},
			"keep, several":    {permits: 3},
			"release, several": {permits: 3},
			"another waits":    {before: func(store.Token) { b.ask(t, store.Claim{Token: store.NewToken(), Mode: store.Queue}) }},
			"another holds too": {permits: 3, before: func(store.Token) {
				b.ask(t, store.Claim{Token: store.NewToken(), Permits: 3})
			}},
			"was abandoned before": {abandoned: true},
			"had progress": {before: func(token store.Token) {
				r := store.Renewal{Key: store.Key{Name: "k"}, Token: token, TTL: time.Minute, Progress: []byte("half")}
				errs := make([]error, 1)
				testkit.Check(t, errors.Join(b.s.Renew(t.Context(), []store.Renewal{r}, errs), errs[0]))
			}},
			"ran out": {is: store.ErrLost, before: func(store.Token) { set("ends=since+1") }},
			"ran out, several": {permits: 3, is: store.ErrLost, before: func(store.Token) {
				b.query(t, b.s.names.sql("UPDATE @holder SET ends=since+1"))
			}},
			"taken over": {is: store.ErrLost, before: func(store.Token) {
				set("ends=since+1")
				b.hold(t, 1)
			}},
			"forgotten": {is: store.ErrLost, before: func(store.Token) { b.query(t, b.s.names.sql("DELETE FROM @key")) }},
			"kept before": {is: store.ErrLost, before: func(token store.Token) {
				errs := make([]error, 1)
				testkit.Check(t, errors.Join(b.s.Settle(t.Context(), []store.Settlement{keeps(token)}, errs), errs[0]))
			}},
			"too large": {is: store.ErrTooLarge},
			"abandon":   {is: store.ErrRolledBack},
		} {
			for _, table := range []string{"@key", "@holder", "@waiter", "@progress", "@record"} {
				b.query(t, b.s.names.sql("DELETE FROM "+table))
			}
			b.query(t, "DELETE FROM "+b.ledger)
			token := b.hold(t, max(test.permits, 1))
			if test.abandoned {
				set("ends=since+1")
				token = b.hold(t, 1)
			}
			x := keeps(token)
			switch {
			case name == "too large":
				x.Data = make([]byte, b.s.packet/2)
			case name == "abandon":
				x.Outcome = store.Abandon
			case strings.HasPrefix(name, "release"):
				x.Outcome = store.Release
			}
			tx := b.begin(t, tr)
			if test.before != nil {
				test.before(token)
			}
			err := tx.Commit(t.Context(), x)
			if !errors.Is(err, test.is) || test.is != nil && test.is != store.ErrLost && !errors.Is(err, store.ErrRolledBack) {
				t.Errorf("%s: %v, want %v, and that it was rolled back", name, err, test.is)
			}
			want := 1
			if test.is != nil {
				want = 0
			}
			if n := b.entries(t, "k"); n != want {
				t.Errorf("%s: %d entries, want %d", name, n, want)
			}
			if test.is != nil {
				continue
			}
			// Nothing is left of the lease, and the record is read whole.
			if name != "another holds too" {
				left := b.query(t, b.s.names.sql("SELECT token,busy,(SELECT COUNT(*) FROM @holder),"+
					"(SELECT COUNT(*) FROM @progress),(SELECT COUNT(*) FROM @waiter) FROM @key"))
				if name != "another waits" && strings.Join(left[0], ",") != ",0,0,0,0" {
					t.Errorf("%s: this is left: %q", name, left)
				}
			}
			a := b.ask(t, store.Claim{Token: store.NewToken(), MaxAge: store.AnyAge, Permits: test.permits})
			switch {
			case x.Outcome == store.Release && (a.State != store.Granted || a.Attempt != 1):
				t.Errorf("%s: %+v, want that it is granted", name, a)
			case x.Outcome == store.Keep && (a.State != store.Done || !bytes.Equal(a.Record.Data, x.Data) || a.Record.Left < 59*time.Minute || a.Record.Age > time.Minute):
				t.Errorf("%s: %+v, want the record", name, a)
			}
		}
	})
}

// TestLargeRecord: a record of some megabytes is kept in a transaction.
func TestLargeRecord(t *testing.T) {
	t.Parallel()
	b := newBank(t, mariadb(), "")
	token := b.hold(t, 1)
	x := keeps(token)
	x.Data = bytes.Repeat([]byte{0, 1, 'a', 0xff, '\''}, 1<<20)
	testkit.Must(t, b.begin(t, b.s.Transactions(b.db, nil)).Commit(t.Context(), x))
	if a := b.ask(t, store.Claim{Token: store.NewToken(), MaxAge: store.AnyAge}); a.State != store.Done || !bytes.Equal(a.Record.Data, x.Data) {
		t.Errorf("%v, and a record of %d bytes", a.State, len(a.Record.Data))
	}
}

// TestOtherServer: a transaction that could not commit an answer with its effect is not
// begun, or not committed.
func TestOtherServer(t *testing.T) {
	t.Parallel()
	b := newBank(t, mariadb(), "")
	for name, test := range map[string]struct {
		tr store.Transactor
		is error
	}{
		"another server": {b.s.Transactions(openDSN(t, odd().DSN()), nil), ErrOtherDatabase},
		"read only":      {b.s.Transactions(b.db, &sql.TxOptions{ReadOnly: true}), ErrReadOnly},
		"no DB":          {b.s.Transactions(nil, nil), nil},
		"no server":      {b.s.Transactions(openDSN(t, "root@tcp(127.0.0.1:1)/"), nil), ErrUnreachable},
	} {
		tx, err := test.tr.Begin(t.Context())
		if err == nil || test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: %v, %v; want %v", name, tx, err, test.is)
		}
	}
	tr := b.s.Transactions(openDSN(t, mariadb().DSN()+"?tx_read_only=1"), nil)
	_, err := OnceTx(t.Context(), b.client, tr, "k", nil, func(context.Context, *sql.Tx) (int, error) { return 0, nil })
	if !errors.Is(err, ErrReadOnly) || !errors.Is(err, store.ErrRolledBack) {
		t.Errorf("%v, want ErrReadOnly and ErrRolledBack", err)
	}
	if _, err := OnceTx(t.Context(), b.client, other{}, "k", nil, func(context.Context, *sql.Tx) (int, error) { return 0, nil }); err == nil || !strings.Contains(err.Error(), "Store.Transactions") {
		t.Errorf("with a Transactor of another store: %v", err)
	}
}

// other is a transaction of another Transactor.
type other struct{ store.Transaction }

func (o other) Begin(context.Context) (store.Transaction, error) { return o, nil }
func (other) Rollback()                                          {}
func (other) Conflicted(error) bool                              { return false }

// transactionRights is what the README says the application's user needs.
const transactionRights = `GRANT SELECT, UPDATE ON app.@key TO web;
GRANT SELECT, UPDATE ON app.@holder TO web;
GRANT SELECT, INSERT, UPDATE ON app.@record TO web;`

// TestTransactionRights: the application's user needs those rights, and no others.
func TestTransactionRights(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		b := newBank(t, server, "")
		user := b.s.options.Prefix + "_web"
		b.query(t, fmt.Sprintf("CREATE USER %s@'127.0.0.1' IDENTIFIED BY 'secret'; GRANT INSERT ON %s TO %[1]s@'127.0.0.1'", user, b.ledger))
		as := strings.NewReplacer("`", "", " TO web", " TO "+user+"@'127.0.0.1'")
		b.query(t, as.Replace(b.s.names.sql(transactionRights)))
		tr := b.s.Transactions(openDSN(t, strings.Replace(b.server.DSN(), "root@", user+":secret@", 1)), nil)
		for range 2 {
			if got, err := b.book(t.Context(), tr, "k"); err != nil || got != "booked k" || b.entries(t, "k") != 1 {
				t.Errorf("%q, %v, %d entries", got, err, b.entries(t, "k"))
			}
		}
		for _, right := range []string{
			"SELECT ON app.@key", "UPDATE ON app.@key", "SELECT ON app.@record", "INSERT ON app.@record", "UPDATE ON app.@record",
		} {
			on := b.s.names.sql(right)
			b.query(t, "REVOKE "+on+" FROM "+user+"@'127.0.0.1'")
			if _, err := b.book(t.Context(), tr, "without "+on); !errors.Is(err, ErrUnauthorized) || !errors.Is(err, store.ErrRolledBack) {
				t.Errorf("without %s: %v, want ErrUnauthorized and ErrRolledBack", on, err)
			}
			if n := b.query(t, "SELECT COUNT(*) FROM "+b.ledger)[0][0]; n != "1" {
				t.Errorf("%s entries after a run whose key could not be settled, want 1", n)
			}
			b.query(t, "GRANT "+on+" TO "+user+"@'127.0.0.1'")
		}
	})
}
