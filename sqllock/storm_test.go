//go:build nightly

package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// Waits are given up at any moment, some of them in that of the grant, and leave nothing
// behind.

// Advisory locks: a thousand waits.
func TestAdvisoryGivenUp(t *testing.T) {
	t.Parallel()
	key := ownKey()
	var all sync.WaitGroup
	var waits, got atomic.Int64
	for range 8 { // as many processes
		a := newAdvisory(t, nil)
		all.Go(func() {
			for i := range 125 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%10)*time.Millisecond)
				o := &LockOptions{Wait: time.Duration(1+i%2*1000) * time.Millisecond}
				err := a.Do(ctx, key, o, func(context.Context) error {
					got.Add(1)
					return nil
				})
				cancel()
				if err != nil {
					waits.Add(1)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d got it, %d gave up", got.Load(), waits.Load())
	testkit.Eventually(t, "nothing is left", func() bool { return advisoryLocks(t, key) == 0 })
}

// Named locks, likewise.
func TestNamedGivenUp(t *testing.T) {
	onMySQL(t, func(t *testing.T, s *servertest.MariaDBServer) {
		dsn := ownDSN(s)
		var all sync.WaitGroup
		var got, gave atomic.Int64
		first := newNamed(t, dsn, nil)
		for range 4 { // as many processes
			n := newNamed(t, dsn, nil)
			all.Go(func() {
				for i := range 50 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%10)*time.Millisecond)
					err := n.Do(ctx, "x", &LockOptions{Wait: time.Duration(1+i%2*1500) * time.Millisecond}, func(context.Context) error {
						got.Add(1)
						return nil
					})
					cancel()
					if err != nil {
						gave.Add(1)
					}
				}
			})
		}
		all.Wait()
		t.Logf("%d got it, %d gave up", got.Load(), gave.Load())
		free(t, s, first, "x")
	})
}

// Half of the transactions roll back, or lose their session at any moment.
func TestSequenceTorture(t *testing.T) {
	const workers, rounds = 64, 12
	onEach(t, func(t *testing.T, b bench) {
		s := newSequence(t, b, nil)
		b.invoices(t)
		var committed, killed atomic.Int64
		own := errors.New("rolled back")
		work := func(r *rand.Rand) {
			fate := r.IntN(4) // 0 and 1 commit, 2 rolls back, 3 loses its session
			n := 1 + r.IntN(3)
			kills := make(chan error, 1)
			err := Transact(t.Context(), b.d, b.DB, &TransactOptions{MaxTries: 1000}, func(ctx context.Context, tx *sql.Tx) error {
				first, err := s.NextN(ctx, tx, "invoice", n)
				if err != nil {
					return err
				}
				if fate == 3 && b.kill != nil {
					var id int64
					if err := tx.QueryRowContext(ctx, b.session).Scan(&id); err != nil {
						return err
					}
					fate = -1
					// While it continues: before the inserts, between, or in the commit.
					go func() { kills <- b.kill(id) }()
				}
				for i := range n {
					if _, err := tx.ExecContext(ctx, b.sql("INSERT INTO invoice (number) VALUES ($1)"), first+int64(i)); err != nil {
						return err
					}
				}
				if fate >= 2 {
					return own
				}
				return nil
			})
			if fate < 0 {
				if err := <-kills; err != nil {
					t.Errorf("killing: %v", err)
				}
				killed.Add(1)
			}
			switch {
			case err == nil:
				committed.Add(int64(n))
			case !errors.Is(err, own) && !sessionEnded(err): // another's kill may come late, and end this one's
				t.Error(err)
			}
		}
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(w), 7))
				for range rounds {
					work(r)
				}
			})
		}
		wg.Wait()
		b.SetMaxIdleConns(0) // a pooled session may be about to end, and the driver does not know
		b.checkInvoices(t, s, committed.Load())
		t.Logf("%d sessions were killed", killed.Load())
	})
}

// writeForever writes invoices, one for each number. Half of its transactions roll back.
func writeForever(args []string) error {
	b, err := openFile(args[0])
	if err != nil {
		return err
	}
	s, err := NewSequence(SQLite, nil)
	if err != nil {
		return err
	}
	back := errors.New("rolled back")
	for i := 0; ; i++ {
		err := Transact(context.Background(), SQLite, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
			if err := b.writeInvoices(ctx, tx, s, 1+i%3, func(int) {}); err != nil || i%2 == 0 {
				return err
			}
			return back
		})
		if err != nil && !errors.Is(err, back) {
			return err
		}
	}
}

func init() { children["forever"] = writeForever }

// Processes that take numbers in one file are killed at any moment, also in the middle
// of a commit, where no point could be.
func TestSequenceKilledProcesses(t *testing.T) {
	t.Parallel()
	const processes, kills = 4, 30
	path := filepath.Join(t.TempDir(), "test.db")
	b, err := openFile(path)
	testkit.Must(t, err)
	defer b.Close()
	s := newSequence(t, b, nil)
	b.invoices(t)
	r := rand.New(rand.NewPCG(5, 5))
	var running []*failpoint.Child
	for i := range kills {
		for len(running) < processes {
			running = append(running, failpoint.Start(t, "", testkit.Child("forever", path)))
		}
		before := b.number(t, "SELECT COUNT(*) FROM invoice")
		testkit.Eventually(t, "they write", func() bool { return b.number(t, "SELECT COUNT(*) FROM invoice") >= before+20 })
		_ = backoff.Sleep(t.Context(), time.Duration(r.Int64N(int64(5*time.Millisecond))))
		running[i%processes].Kill()
		running[i%processes] = failpoint.Start(t, "", testkit.Child("forever", path))
	}
	for _, child := range running {
		child.Kill()
	}
	b.checkInvoices(t, s, 20*kills)
}
