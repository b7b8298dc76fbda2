package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/internal/sqltest"
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

// cycles has so many goroutines make b.N cycles together, and reports how many that
// is in a second.
func cycles(b *testing.B, goroutines int, cycle func(g, i int64) error) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	var n atomic.Int64
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
				if err := cycle(int64(g), i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
}

// One claim and settlement of a key that nobody has used before, or of a key of
// one's own, by so many at once.
func BenchmarkAcquireRelease(b *testing.B) {
	onEach(b, func(b *testing.B, url string) {
		for _, keys := range []string{"new", "own"} {
			for _, goroutines := range []int{1, 64, 512} {
				b.Run(fmt.Sprintf("%s/%d", keys, goroutines), func(b *testing.B) {
					client := sqltest.Client(b, open(b, url, &Options{Prefix: ownPrefix()}), nil)
					cycles(b, goroutines, func(g, i int64) error {
						key := fmt.Sprintf("goroutine %d", g)
						if keys == "new" {
							key = fmt.Sprintf("goroutine %d, cycle %d", g, i)
						}
						lease, err := client.Acquire(context.Background(), key, nil)
						if err != nil {
							return err
						}
						return lease.Release()
					})
				})
			}
		}
	})
}

// An answer that is kept.
func BenchmarkOnce(b *testing.B) {
	onEach(b, func(b *testing.B, url string) {
		for _, goroutines := range []int{1, 64} {
			b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
				client := sqltest.Client(b, open(b, url, &Options{Prefix: ownPrefix()}), nil)
				answer := strings.Repeat("answer", 100)
				cycles(b, goroutines, func(g, i int64) error {
					_, err := dibs.Once(context.Background(), client, fmt.Sprintf("once %d %d", g, i), nil, func(context.Context) (string, error) {
						return answer, nil
					})
					return err
				})
			})
		}
	})
}

// The same statements, each call on its own, on a pool of as many connections as
// goroutines: what batching is worth.
func BenchmarkOneByOne(b *testing.B) {
	onEach(b, func(b *testing.B, url string) {
		for _, goroutines := range []int{1, 64} {
			b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
				s := open(b, url, &Options{Prefix: ownPrefix()})
				s.front.SetMaxOpenConns(goroutines)
				s.front.SetMaxIdleConns(goroutines)
				back := s.back
				s.back = s.front
				b.Cleanup(func() { s.back = back })
				ctx := context.Background()
				cycles(b, goroutines, func(g, i int64) error {
					k, t := dibs.Key{Name: fmt.Sprintf("goroutine %d, cycle %d", g, i)}, dibs.NewToken()
					answers, errs := make([]dibs.Answer, 1), make([]error, 1)
					err := s.Claim(ctx, []dibs.Claim{{Key: k, Token: t, TTL: time.Minute, Permits: 1}}, answers)
					if err == nil {
						err = s.Settle(ctx, []dibs.Settlement{{Key: k, Token: t}}, errs)
					}
					return err
				})
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
				table := ownPrefix()
				if _, err := db.ExecContext(ctx, "CREATE TABLE "+table+" (k VARBINARY(577) PRIMARY KEY, token BINARY(16), ends DATETIME(6))"); err != nil {
					b.Fatal(err)
				}
				take := prepare(b, db, "INSERT INTO "+table+" VALUES (?, ?, NOW(6) + INTERVAL 1 MINUTE) ON DUPLICATE KEY UPDATE "+
					"token = IF(ends < NOW(6), VALUES(token), token), ends = IF(token = VALUES(token), VALUES(ends), ends)")
				end := prepare(b, db, "DELETE FROM "+table+" WHERE k = ? AND token = ?")
				cycles(b, goroutines, func(g, i int64) error {
					k, t := fmt.Sprintf("goroutine %d, cycle %d", g, i), dibs.NewToken()
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
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = st.Close() })
	return st
}

// A record that answers.
func BenchmarkReplay(b *testing.B) {
	onEach(b, func(b *testing.B, url string) {
		for _, goroutines := range []int{1, 64} {
			b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
				client := sqltest.Client(b, open(b, url, &Options{Prefix: ownPrefix()}), nil)
				run := func() (string, error) {
					return dibs.Once(context.Background(), client, "answered", nil, func(context.Context) (string, error) {
						return strings.Repeat("answer", 100), nil
					})
				}
				if _, err := run(); err != nil {
					b.Fatal(err)
				}
				cycles(b, goroutines, func(int64, int64) error {
					_, err := run()
					return err
				})
			})
		}
	})
}

// From a release in one process to the moment at which another one's waiter holds
// the key, when it has waited for a moment and when for longer.
func BenchmarkHandOver(b *testing.B) {
	onEach(b, func(b *testing.B, url string) {
		for _, held := range []time.Duration{time.Millisecond, time.Second} {
			b.Run(held.String(), func(b *testing.B) { handOver(b, url, held) })
		}
	})
}

func handOver(b *testing.B, url string, held time.Duration) {
	prefix := ownPrefix()
	store := open(b, url, &Options{Prefix: prefix})
	clients := []*dibs.Client{
		sqltest.Client(b, store, nil),
		sqltest.Client(b, open(b, url, &Options{Prefix: prefix}), nil),
	}
	ctx := context.Background()
	lease, err := clients[0].Acquire(ctx, "k", nil)
	if err != nil {
		b.Fatal(err)
	}
	took := make([]time.Duration, 0, b.N)
	look := []dibs.Claim{{Key: dibs.Key{Name: "k"}, Mode: dibs.Look, Permits: 1}}
	for i := range b.N {
		got := make(chan *dibs.Lease)
		go func() {
			l, err := clients[(i+1)%2].Acquire(ctx, "k", nil)
			if err != nil {
				b.Error(err)
			}
			got <- l
		}()
		for answer := make([]dibs.Answer, 1); answer[0].Ahead == 0; { // until it waits
			if err := store.Claim(ctx, look, answer); err != nil {
				b.Fatal(err)
			}
		}
		time.Sleep(held) // the time that is measured begins afterwards
		start := time.Now()
		go func() { _ = lease.Release() }()
		next := <-got
		took = append(took, time.Since(start))
		lease = next
	}
	if err := lease.Release(); err != nil {
		b.Fatal(err)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
