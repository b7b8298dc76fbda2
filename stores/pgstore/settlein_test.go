package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestRenewedInTransaction: at the levels with a snapshot, a lease that is renewed
// while the transaction is open makes for a conflict, and a run anew. At read
// committed it does not matter.
func TestRenewedInTransaction(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	for level, conflicts := range map[pgx.TxIsoLevel]bool{pgx.ReadCommitted: false, pgx.RepeatableRead: true, pgx.Serializable: true} {
		ran := 0
		key := string(level)
		_, err := OnceTx(t.Context(), b.client, b.s.Transactions(b.pool, &pgx.TxOptions{IsoLevel: level}), key, nil, func(ctx context.Context, tx pgx.Tx) (int, error) {
			ran++
			if _, err := tx.Exec(ctx, b.entry(key)); err != nil {
				return 0, err
			}
			if ran == 1 {
				lease, _ := dibs.FromContext(ctx)
				if err := lease.Save(ctx, []byte("half")); err != nil { // which renews it
					return 0, err
				}
			}
			return 0, nil
		})
		// The client's own renewal may block the second run too.
		if err != nil || conflicts != (ran > 1) {
			t.Errorf("%s: %v, after %d runs", level, err, ran)
		}
		if n := b.entries(t, key); n != 1 {
			t.Errorf("%s: %d entries", level, n)
		}
	}
}

// beginMarked begins a transaction as a run's does, by hand.
func (b *bank) beginMarked(t *testing.T, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := b.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err == nil {
		_, err = tx.Exec(t.Context(), markSQL+"; "+b.entry("k"))
	}
	testkit.Must(t, err)
	return tx
}

// settleIn settles in it.
func (b *bank) settleIn(t *testing.T, tx pgx.Tx, x store.Settlement) {
	t.Helper()
	with, err := b.s.settleIn(&x, true)
	if err == nil {
		_, err = tx.Exec(t.Context(), b.s.sql.settleIn.sql, with...)
	}
	testkit.Must(t, err)
}

// TestOtherDatabase: a transaction that could not commit an answer with its effect is
// not begun.
func TestOtherDatabase(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	url := ownDatabase(shared())
	pool, err := pgxpool.New(t.Context(), url)
	testkit.Must(t, err)
	defer pool.Close()
	db, err := sql.Open("pgx", url)
	testkit.Must(t, err)
	defer db.Close()
	for name, test := range map[string]struct {
		tr store.Transactor
		is error
	}{
		"pgx":            {b.s.Transactions(pool, nil), ErrOtherDatabase},
		"sql":            {b.s.SQLTransactions(db, nil), ErrOtherDatabase},
		"pgx, read only": {b.s.Transactions(b.pool, &pgx.TxOptions{AccessMode: pgx.ReadOnly}), ErrReadOnly},
		"sql, read only": {b.s.SQLTransactions(b.db, &sql.TxOptions{ReadOnly: true}), ErrReadOnly},
		"no pool":        {b.s.Transactions(nil, nil), nil},
		"no DB":          {b.s.SQLTransactions(nil, nil), nil},
	} {
		tx, err := test.tr.Begin(t.Context())
		if err == nil || test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("%s: %v, %v; want %v", name, tx, err, test.is)
		}
	}
}

// TestTransactionRights: the application's user needs no rights on the tables, and
// whatever it has set does not matter.
func TestTransactionRights(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	role := b.s.names.schema + "_app"
	rights := strings.NewReplacer("SCHEMA own", "SCHEMA "+b.s.names.schema, " app;", " "+role+";").Replace(b.s.names.sql(transactionRights))
	shared().Query(fmt.Sprintf(`CREATE ROLE %[1]s LOGIN; %[2]s GRANT INSERT ON %[3]s TO %[1]s;
		CREATE SCHEMA %[1]s AUTHORIZATION %[1]s`, role, rights, b.ledger))
	// A search_path in which the operators mean something else.
	shared().Query(fmt.Sprintf(`CREATE FUNCTION %[1]s.no(bytea, bytea) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
		CREATE OPERATOR %[1]s.= (FUNCTION = %[1]s.no, LEFTARG = bytea, RIGHTARG = bytea);
		CREATE FUNCTION %[1]s.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT ''nothing'''`, role))
	for _, settings := range []string{
		"search_path = " + role + ", pg_catalog", "lock_timeout = '1ms'", "synchronous_commit = off", "role = " + role,
		"default_transaction_isolation = 'serializable'", "default_transaction_deferrable = on",
	} {
		shared().Query(fmt.Sprintf("ALTER ROLE %s SET %s", role, settings))
	}
	pool, err := pgxpool.New(t.Context(), strings.Replace(shared().URL(), "//postgres@", "//"+role+"@", 1))
	testkit.Must(t, err)
	defer pool.Close()
	if got, err := b.book(t.Context(), b.s.Transactions(pool, nil), "k"); err != nil || got != "booked k" || b.entries(t, "k") != 1 {
		t.Errorf("%q, %v, %d entries", got, err, b.entries(t, "k"))
	}
	if _, err := pool.Exec(t.Context(), b.s.names.sql("SELECT FROM @key")); code(err) != "42501" {
		t.Errorf("reading the table: %v, want that it is forbidden", err)
	}
	// If the user may not call the function, the error says so.
	shared().Query(fmt.Sprintf(b.s.names.sql("REVOKE EXECUTE ON FUNCTION @settle_in FROM %s"), role))
	if _, err := b.book(t.Context(), b.s.Transactions(pool, nil), "l"); !errors.Is(err, ErrUnauthorized) || !errors.Is(err, store.ErrRolledBack) {
		t.Errorf("%v, want ErrUnauthorized and ErrRolledBack", err)
	}
	if n := b.entries(t, "l"); n != 0 {
		t.Errorf("%d entries of a run whose key could not be settled", n)
	}
}

// TestDurableTransaction: what is answered was written to the disk, even where the
// application does without.
func TestDurableTransaction(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL()+"&synchronous_commit=off", nil)
	c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Minute, Permits: 1, Weight: 1}
	testkit.Must(t, b.s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1)))
	tx := b.beginMarked(t, pgx.ReadCommitted)
	defer tx.Rollback(context.Background())
	level := func() (level string) {
		t.Helper()
		testkit.Must(t, tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&level))
		return level
	}
	if got := level(); got != "off" {
		t.Fatalf("synchronous_commit is %s", got)
	}
	b.settleIn(t, tx, store.Settlement{Key: c.Key, Token: c.Token})
	if got := level(); got != "on" {
		t.Errorf("synchronous_commit is %s", got)
	}
}

// bank is an application: a ledger, in the database in which the keys are too.
type bank struct {
	s      *Store
	client *dibs.Client
	pool   *pgxpool.Pool
	db     *sql.DB
	ledger string // its table
}

// newBank opens a bank with a store of its own. What its connections are like is in
// the URL.
func newBank(t testing.TB, url string, o *Options) *bank {
	t.Helper()
	if o == nil {
		o = &Options{}
	}
	mine := ownNames()
	o.Schema, o.Prefix, o.pushedTTL = mine.Schema, mine.Prefix, testkit.Limit // no turn passes because the machine is slow
	b := &bank{s: open(t, url, o), ledger: o.Schema + ".ledger"}
	b.client = sqltest.Client(t, b.s, nil)
	config, err := pgxpool.ParseConfig(url)
	testkit.Must(t, err)
	if b.s.pooled.Load() {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	if b.pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.pool.Close)
	if b.s.pooled.Load() {
		url += "&default_query_exec_mode=exec"
	}
	if b.db, err = sql.Open("pgx", url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.db.Close() })
	if _, err := b.pool.Exec(t.Context(), "CREATE TABLE "+b.ledger+" (what text NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return b
}

// over returns the bank with pools on another address of the server.
func (b *bank) over(t testing.TB, addr string) *bank {
	t.Helper()
	far, url := *b, shared().URLAt(addr)
	var err error
	far.pool, err = pgxpool.New(t.Context(), url)
	testkit.Must(t, err)
	t.Cleanup(far.pool.Close)
	far.db = openDB(t, url)
	return &far
}

// book makes an entry, in a run of its own.
func (b *bank) book(ctx context.Context, tr store.Transactor, key string) (string, error) {
	return dibs.OnceIn(ctx, b.client, tr, key, nil, func(ctx context.Context) (string, error) {
		return "booked " + key, exec(ctx, b.entry(key))
	})
}

// entry is the statement that makes an entry.
func (b *bank) entry(what string) string {
	return fmt.Sprintf("INSERT INTO %s VALUES ('%s')", b.ledger, what)
}

// entries counts those of that name.
func (b *bank) entries(t testing.TB, what string) (n int) {
	t.Helper()
	testkit.Must(t, b.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+b.ledger+" WHERE what = $1", what).Scan(&n))
	return n
}

// kinds are the Transactors that there are, by what they go through.
var kinds = map[string]kind{
	"pgx": {sharedURL, func(b *bank) store.Transactor { return b.s.Transactions(b.pool, nil) }},
	"sql": {sharedURL, func(b *bank) store.Transactor { return b.s.SQLTransactions(b.db, nil) }},
	"pgx, repeatable": {sharedURL, func(b *bank) store.Transactor {
		return b.s.Transactions(b.pool, &pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	}},
	"sql, serializable": {sharedURL, func(b *bank) store.Transactor {
		return b.s.SQLTransactions(b.db, &sql.TxOptions{Isolation: sql.LevelSerializable})
	}},
}

type kind struct {
	url        func() string
	transactor func(*bank) store.Transactor
}

// sharedURL is the URL of the server itself.
func sharedURL() string { return shared().URL() }
