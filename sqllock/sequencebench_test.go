package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs/internal/servertest"
)

// The servers of the benchmarks wait for their disks, as they do where they matter.
var (
	benchPostgres = sync.OnceValue(func() *servertest.PostgresServer { return servertest.Postgres(scope, nil) })
	benchMariaDB  = sync.OnceValue(func() *servertest.MariaDBServer { return servertest.MariaDB(scope, nil) })
)

// durable opens a pool on a database of the benchmark's own, with the tables.
func durable(b *testing.B, d Dialect) (bench, *Sequence) {
	b.Helper()
	base := bench{database: database{d: d}}
	switch d {
	case PostgreSQL:
		schema := own()
		benchPostgres().Query("CREATE SCHEMA " + schema)
		base.DB = openDB(b, "pgx", withParameter(benchPostgres().URL(), "search_path", schema))
	case MariaDB:
		database := own()
		benchMariaDB().Query("CREATE DATABASE " + database)
		base.DB = openDB(b, "mysql", "root@tcp("+benchMariaDB().Addr()+")/"+database+"?interpolateParams=true")
	case SQLite:
		base.DB = sqliteDB(b, "_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(10000)")
	}
	base.SetMaxIdleConns(writers)
	s := newSequence(b, base, nil)
	base.invoices(b)
	base.must(b, "CREATE UNIQUE INDEX invoice_number ON invoice (number)")
	return base, s
}

// writers is how many write invoices at once.
const writers = 16

// numbering is a way of giving numbers to invoices, so many in one transaction.
type numbering struct {
	name    string
	d       Dialect
	batch   int
	invoice func(ctx context.Context, db *sql.DB, s *Sequence) error
}

var numberings = []numbering{
	{"PostgreSQL/MAX+1 under an advisory lock", PostgreSQL, 1, maxPlusOne(PostgreSQL,
		"SELECT pg_advisory_xact_lock(7)", "SELECT COALESCE(MAX(number), 0) + 1 FROM invoice")},
	{"PostgreSQL/Next", PostgreSQL, 1, withNext(PostgreSQL, 1)},
	{"PostgreSQL/CTE", PostgreSQL, 1, withCTE(1)},
	{"PostgreSQL/NextN 100", PostgreSQL, 100, withNext(PostgreSQL, 100)},
	{"PostgreSQL/CTE 100", PostgreSQL, 100, withCTE(100)},
	{"MariaDB/MAX+1 under a named lock", MariaDB, 1, maxPlusOneNamed},
	{"MariaDB/Next", MariaDB, 1, withNext(MariaDB, 1)},
	{"MariaDB/NextN 100", MariaDB, 100, withNext(MariaDB, 100)},
	{"SQLite/MAX+1", SQLite, 1, maxPlusOne(SQLite, "", "SELECT COALESCE(MAX(number), 0) + 1 FROM invoice")},
	{"SQLite/Next", SQLite, 1, withNext(SQLite, 1)},
	{"SQLite/NextN 100", SQLite, 100, withNext(SQLite, 100)},
}

// maxPlusOne is what people write by hand.
func maxPlusOne(d Dialect, lock, highest string) func(context.Context, *sql.DB, *Sequence) error {
	insert := "INSERT INTO invoice (number) VALUES (" + d.placeholder(1) + ")"
	return func(ctx context.Context, db *sql.DB, _ *Sequence) error {
		return Transact(ctx, d, db, nil, func(ctx context.Context, tx *sql.Tx) error {
			if lock != "" {
				if _, err := tx.ExecContext(ctx, lock); err != nil {
					return err
				}
			}
			var n int64
			if err := tx.QueryRowContext(ctx, highest).Scan(&n); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, insert, n)
			return err
		})
	}
}

// maxPlusOneNamed is the same with a lock that belongs to the session and not to the
// transaction.
func maxPlusOneNamed(ctx context.Context, db *sql.DB, _ *Sequence) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var ok, n int64
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK('invoice', 60)").Scan(&ok); err != nil {
		return err
	}
	defer conn.ExecContext(ctx, "DO RELEASE_LOCK('invoice')")
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := tx.QueryRowContext(ctx, "SELECT COALESCE(MAX(number), 0) + 1 FROM invoice").Scan(&n); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO invoice (number) VALUES (?)", n); err != nil {
		return err
	}
	return tx.Commit()
}

// withNext takes the numbers from a Sequence and writes all invoices with one INSERT.
func withNext(d Dialect, n int) func(context.Context, *sql.DB, *Sequence) error {
	var values strings.Builder
	for i := range n {
		if i > 0 {
			values.WriteString(", ")
		}
		fmt.Fprintf(&values, "(%s)", d.placeholder(i+1))
	}
	insert := "INSERT INTO invoice (number) VALUES " + values.String()
	return func(ctx context.Context, db *sql.DB, s *Sequence) error {
		return Transact(ctx, d, db, nil, func(ctx context.Context, tx *sql.Tx) error {
			first, err := s.NextN(ctx, tx, "invoice", n)
			if err != nil {
				return err
			}
			numbers := make([]any, n)
			for i := range numbers {
				numbers[i] = first + int64(i)
			}
			_, err = tx.ExecContext(ctx, insert, numbers...)
			return err
		})
	}
}

// withCTE does it all in one statement, which is its own transaction.
func withCTE(n int) func(context.Context, *sql.DB, *Sequence) error {
	return func(ctx context.Context, db *sql.DB, s *Sequence) error {
		cte, err := s.CTE("$1", "$2")
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, "WITH "+cte+" INSERT INTO invoice (number) SELECT generate_series(first, last) FROM number", "invoice", n)
		return err
	}
}

// Invoices with numbers without a gap, by several writers at once, each on stable
// storage before the next is begun.
func BenchmarkNumbers(b *testing.B) {
	for _, n := range numberings {
		b.Run(n.name, func(b *testing.B) {
			db, s := durable(b, n.d)
			ctx := context.Background()
			b.ResetTimer()
			var i atomic.Int64
			var all sync.WaitGroup
			for range writers {
				all.Go(func() {
					for i.Add(1) <= int64(b.N) {
						if err := n.invoice(ctx, db.DB, s); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N*n.batch)/b.Elapsed().Seconds(), "numbers/s")
			db.checkNumbers(b)
		})
	}
}
