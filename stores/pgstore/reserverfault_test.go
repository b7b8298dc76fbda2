package pgstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestReserveInRefused: what cannot work is said at once, and the transaction can go
// on without.
func TestReserveInRefused(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	good := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), Mode: store.Reserve, PlaceTTL: time.Hour}
	invalid, queue := good, good
	invalid.PlaceTTL, queue.Mode, queue.TTL = 0, store.Queue, time.Second
	shared().Query("CREATE DATABASE " + b.s.names.schema)
	elsewhere := strings.Replace(shared().URL(), "/postgres?", "/"+b.s.names.schema+"?", 1)
	open(t, elsewhere, namesOf(b.s)) // which has the same tables
	other, err := pgxpool.New(t.Context(), elsewhere)
	testkit.Must(t, err)
	defer other.Close()
	for name, test := range map[string]struct {
		pool    *pgxpool.Pool
		options pgx.TxOptions
		claim   store.Claim
		is      error
		says    string
	}{
		"other database": {other, pgx.TxOptions{}, good, ErrOtherDatabase, "pool"},
		"invalid":        {b.pool, pgx.TxOptions{}, invalid, nil, "Claim.PlaceTTL"},
		"another mode":   {b.pool, pgx.TxOptions{}, queue, nil, "Claim.Mode"},
	} {
		err := pgx.BeginTxFunc(t.Context(), test.pool, test.options, func(tx pgx.Tx) error {
			err := b.s.Reserver(tx).Reserve(t.Context(), []store.Claim{good, test.claim})
			if err == nil || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %v; want %v, and %q", name, err, test.is, test.says)
			}
			_, err = tx.Exec(t.Context(), "SELECT 1")
			return err
		})
		if err != nil {
			t.Errorf("%s: then %v", name, err)
		}
	}
	if n := b.places(t, "k"); n != 0 {
		t.Errorf("%d places", n)
	}
	tx, err := b.pool.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly})
	testkit.Must(t, err)
	for _, test := range []struct {
		r    store.Reserver
		is   error
		says string
	}{
		{b.s.Reserver(tx), ErrReadOnly, "read-write"},
		{b.s.Reserver(tx), ErrAborted, "savepoint"}, // by that
	} {
		if err := test.r.Reserve(t.Context(), []store.Claim{good}); !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v; want %v, and %q", err, test.is, test.says)
		}
	}
	_ = tx.Rollback(t.Context())
	for _, test := range []struct {
		r    store.Reserver
		is   error
		says string
	}{
		{b.s.Reserver(tx), pgx.ErrTxClosed, "over"},
		{b.s.Reserver(nil), nil, "no transaction"},
		{b.s.SQLReserver(nil), nil, "no transaction"},
	} {
		err := test.r.Reserve(t.Context(), []store.Claim{good})
		if err == nil || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v; want %v, and %q", err, test.is, test.says)
		}
	}
}

// TestReserveInTablesMadeAnew: a store whose tables were lost and made again reserves
// in them.
func TestReserveInTablesMadeAnew(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	for range 2 {
		tx, err := b.pool.Begin(t.Context())
		testkit.Must(t, err)
		if _, err := b.client.ReserveIn(t.Context(), b.s.Reserver(tx), "k", time.Hour, nil); err != nil {
			t.Fatal(err)
		}
		testkit.Must(t, tx.Commit(t.Context()))
		if n := b.places(t, "k"); n != 1 {
			t.Errorf("%d places", n)
		}
		shared().Query("DROP SCHEMA " + b.s.names.schema + " CASCADE")
		testkit.Must(t, Migrate(t.Context(), b.pool, &b.s.options))
		b.pool.Reset() // functions that are known by number
		b.s.front.Reset()
	}
}

// TestReserveInRights: the application's user needs no rights on the tables, and
// whatever it has set does not matter.
func TestReserveInRights(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	role := b.s.names.schema + "_app"
	rights := strings.NewReplacer("SCHEMA own", "SCHEMA "+b.s.names.schema, " app;", " "+role+";").Replace(b.s.names.sql(transactionRights))
	shared().Query(fmt.Sprintf(`CREATE ROLE %[1]s LOGIN; %[2]s GRANT INSERT ON %[3]s TO %[1]s; CREATE SCHEMA %[1]s AUTHORIZATION %[1]s;
		CREATE FUNCTION %[1]s.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS 'SELECT ''3''::xid8';
		CREATE FUNCTION %[1]s.no(xid8, xid8) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
		CREATE OPERATOR %[1]s.= (FUNCTION = %[1]s.no, LEFTARG = xid8, RIGHTARG = xid8)`, role, rights, b.ledger))
	for _, settings := range []string{
		"search_path = " + role + ", pg_catalog", "lock_timeout = '1ms'", "role = " + role, "standard_conforming_strings = on",
		"bytea_output = 'escape'", "intervalstyle = 'sql_standard'", "datestyle = 'German'",
	} {
		shared().Query(fmt.Sprintf("ALTER ROLE %s SET %s", role, settings))
	}
	pool, err := pgxpool.New(t.Context(), strings.Replace(shared().URL(), "//postgres@", "//"+role+"@", 1))
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	b.pool = pool
	e := b.enqueue(t, "pgx", "k")
	p := b.reserve(t, e, "k", nil)
	testkit.Must(t, e.commit())
	if b.ahead(t, p) != 0 {
		t.Error("the place does not stand")
	}
	for _, what := range []string{"SELECT FROM @waiter", "SELECT nextval('@number')"} {
		if _, err := b.pool.Exec(t.Context(), b.s.names.sql(what)); code(err) != "42501" {
			t.Errorf("%s: %v, want that it is forbidden", what, err)
		}
	}
	shared().Query(fmt.Sprintf(b.s.names.sql("REVOKE EXECUTE ON FUNCTION @reserve_in FROM %s"), role))
	e = b.enqueue(t, "pgx", "k")
	if _, err := b.client.ReserveIn(t.Context(), e, "k", time.Hour, nil); !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), "README") {
		t.Errorf("%v, want ErrUnauthorized", err)
	}
}
