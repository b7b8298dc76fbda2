package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

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
