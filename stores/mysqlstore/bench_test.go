package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// The servers that are measured, with their own settings: they wait for their disk.
var benchServers = map[string]func() *servertest.MariaDBServer{
	"mariadb": sync.OnceValue(func() *servertest.MariaDBServer { return servertest.MariaDB(scope, nil) }),
	"mysql": sync.OnceValue(func() *servertest.MariaDBServer {
		return servertest.MariaDB(scope, &servertest.MariaDBOptions{MySQL: true})
	}),
}

// onEach measures on each kind of server.
func onEach(b *testing.B, measure func(b *testing.B, url string)) {
	for _, kind := range []string{"mariadb", "mysql"} {
		b.Run(kind, func(b *testing.B) { measure(b, benchServers[kind]().URL()) })
	}
}

// opener returns what opens a store on a server, with tables of its own.
func opener(url string) func(*testing.B) sqltest.Store {
	return func(b *testing.B) sqltest.Store { return open(b, url, &Options{Prefix: testkit.Own()}) }
}

func BenchmarkAcquireRelease(b *testing.B) {
	onEach(b, func(b *testing.B, url string) { sqltest.AcquireRelease(b, opener(url)) })
}

func BenchmarkOnce(b *testing.B) {
	onEach(b, func(b *testing.B, url string) { sqltest.Once(b, opener(url), false) })
}

func BenchmarkReplay(b *testing.B) {
	onEach(b, func(b *testing.B, url string) { sqltest.Once(b, opener(url), true) })
}

func BenchmarkOneByOne(b *testing.B) {
	onEach(b, func(b *testing.B, url string) {
		sqltest.OneByOne(b, func(b *testing.B, connections int) sqltest.Store {
			s := opener(url)(b).(*Store)
			s.front.SetMaxOpenConns(connections)
			s.front.SetMaxIdleConns(connections)
			back := s.back
			s.back = s.front
			b.Cleanup(func() { s.back = back })
			return s
		})
	})
}

// BenchmarkHandOver: when the waiter has waited for a moment, and when for longer.
func BenchmarkHandOver(b *testing.B) {
	onEach(b, func(b *testing.B, url string) {
		for _, held := range []time.Duration{time.Millisecond, time.Second} {
			b.Run(held.String(), func(b *testing.B) {
				o := &Options{Prefix: testkit.Own()}
				sqltest.HandOver(b, held, [2]sqltest.Store{open(b, url, o), open(b, url, o)})
			})
		}
	})
}

// The raw floor: a lease as two statements that are written by hand and prepared.
func BenchmarkTwoStatements(b *testing.B) {
	onEach(b, func(b *testing.B, url string) {
		for _, goroutines := range []int{1, 64} {
			b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
				db := openDB(b, url)
				db.SetMaxOpenConns(goroutines)
				db.SetMaxIdleConns(goroutines)
				ctx := context.Background()
				table := testkit.Own()
				if _, err := db.ExecContext(ctx, "CREATE TABLE "+table+" (k VARBINARY(577) PRIMARY KEY, token BINARY(16), ends DATETIME(6))"); err != nil {
					b.Fatal(err)
				}
				take := prepare(b, db, "INSERT INTO "+table+" VALUES (?, ?, NOW(6) + INTERVAL 1 MINUTE) ON DUPLICATE KEY UPDATE "+
					"token = IF(ends < NOW(6), VALUES(token), token), ends = IF(token = VALUES(token), VALUES(ends), ends)")
				end := prepare(b, db, "DELETE FROM "+table+" WHERE k = ? AND token = ?")
				sqltest.Cycles(b, goroutines, func(g, i int64) error {
					k, t := fmt.Sprintf("goroutine %d, cycle %d", g, i), store.NewToken()
					_, err := take.ExecContext(ctx, k, t[:])
					if err == nil {
						_, err = end.ExecContext(ctx, k, t[:])
					}
					return err
				})
			})
		}
	})
}

func prepare(b *testing.B, db *sql.DB, text string) *sql.Stmt {
	b.Helper()
	st, err := db.PrepareContext(b.Context(), text)
	testkit.Must(b, err)
	b.Cleanup(func() { _ = st.Close() })
	return st
}
