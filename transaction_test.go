package dibs_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/journal"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// While the outcome of one transaction is unknown, no other is committed under its lease.
func TestCompleteInOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c, l := newClient(t, s, nil), journal.New(s.Store, journal.Unanswered)
		lease := acquire(t, c, "k", nil)
		complete := func() error {
			tx, err := l.Begin(t.Context()) // the lease's context ends with the first
			testkit.Must(t, err)
			journal.Write(store.WithTransaction(t.Context(), tx), "row")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return lease.CompleteIn(ctx, tx, []byte("done"), time.Hour)
		}
		s.set(func(string) error { return errCut }, nil)
		if err := complete(); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("with an unknown outcome the caller got %v", err)
		}
		s.set(nil, nil)
		if err := complete(); !errors.Is(err, dibs.ErrRolledBack) || len(l.Rows()) != 1 {
			t.Errorf("the second transaction got %v, and the journal has %q", err, l.Rows())
		}
		if err := lease.Release(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("a lease that was settled after all got %v", err)
		}
	})
}

// A transaction that says why it was rolled back leaves the lease as it is, whatever
// the reason.
func TestCompleteInLeavesTheLease(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
		lease := acquire(t, c, "k", nil)
		err := lease.CompleteIn(t.Context(), refusal{&dibs.StoreError{Op: "settle", Err: errCut}}, nil, time.Hour)
		if !errors.Is(err, dibs.ErrRolledBack) || lease.Err() != nil {
			t.Errorf("got %v, and the lease has ended: %v", err, lease.Err())
		}
		ended, end := context.WithCancel(t.Context())
		end()
		tx := &stuck{}
		err = lease.CompleteIn(ended, tx, nil, time.Hour)
		if !errors.Is(err, dibs.ErrRolledBack) || !errors.Is(err, context.Canceled) || !tx.over.Load() || lease.Err() != nil {
			t.Errorf("a commit that was not sent got %v, and the lease has ended: %v", err, lease.Err())
		}
		testkit.Check(t, lease.Release())
	})
}

// A renewal would wait for a transaction that has settled the lease and is not
// committed yet, so none is sent; a transaction that fails leaves a lease that is
// renewed again.
func TestNothingIsRenewedDuringACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, &dibs.Options{TTL: 9 * time.Second})
		lease := acquire(t, c, "k", nil)
		renewals := 0
		err := lease.CompleteIn(t.Context(), slowCommit(func() {
			time.Sleep(8 * time.Second)
			s.mu.Lock()
			renewals = len(s.renews)
			s.mu.Unlock()
		}), nil, time.Hour)
		if !errors.Is(err, dibs.ErrRolledBack) || renewals != 0 {
			t.Errorf("got %v, and %d renewals were sent during the commit", err, renewals)
		}
		time.Sleep(20 * time.Second)
		if err := lease.Err(); err != nil {
			t.Errorf("after a commit that failed the lease has ended: %v", err)
		}
		testkit.Check(t, lease.Release())
	})
}

// slowCommit is a transaction whose commit takes a while and fails.
type slowCommit func()

func (wait slowCommit) Commit(context.Context, store.Settlement) error {
	wait()
	return dibs.ErrRolledBack
}

func (slowCommit) Rollback() {}

func (slowCommit) Conflicted(error) bool { return false }

func TestStepsAreOutsideOfTheTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c, l := newClient(t, s, nil), journal.New(s, journal.Conflicted)
		steps := 0
		_, err := dibs.OnceIn(t.Context(), c, l, "k", nil, func(ctx context.Context) (int, error) {
			journal.Write(ctx, "row")
			return dibs.Step(ctx, "charge", func(ctx context.Context) (int, error) {
				steps++
				if tx := store.TransactionFrom(ctx); tx != nil {
					t.Errorf("a step was given the transaction %v", tx)
				}
				return 7, nil
			})
		})
		if err != nil || steps != 1 || len(l.Rows()) != 1 {
			t.Errorf("got %v, %d steps, the journal has %q", err, steps, l.Rows())
		}
	})
}

// What Once remembers stays when the transaction around it is rolled back, so what it
// runs does not write there.
func TestOnceIsOutsideOfTheTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c, l := newClient(t, s, nil), journal.New(s)
		if _, err := dibs.OnceIn(t.Context(), c, l, "outer", nil, func(ctx context.Context) (int, error) {
			return dibs.Once(ctx, c, "inner", nil, func(ctx context.Context) (int, error) {
				if tx := store.TransactionFrom(ctx); tx != nil {
					t.Errorf("what is remembered by itself was given the transaction %v", tx)
				}
				return 7, nil
			})
		}); err != nil {
			t.Error(err)
		}
	})
}

// A caller that asks for the outcome of a commit does not wait for the rest of the transaction.
func TestCompleteInAsksBehindTheTransaction(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		lease := acquire(t, c, "k", nil)
		tx := &stuck{}
		s.set(func(verb string) error {
			if verb == "settle" && !tx.over.Load() {
				return errCut // it has the row
			}
			return nil
		}, nil)
		err := lease.CompleteIn(t.Context(), tx, nil, time.Hour)
		if !errors.Is(err, dibs.ErrRolledBack) || errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
	})
}

// stuck is a transaction whose commit fails and leaves it open.
type stuck struct{ over atomic.Bool }

func (*stuck) Commit(context.Context, store.Settlement) error { return errCut }

func (tx *stuck) Rollback() { tx.over.Store(true) }

func (*stuck) Conflicted(error) bool { return false }

// TestCompleteInEndsTheTrust: while the outcome of a commit is looked for, the lease may be over.
func TestCompleteInEndsTheTrust(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		lease, err := c.Acquire(t.Context(), "k", nil)
		testkit.Must(t, err)
		s.set(func(string) error { return errCut }, nil)
		ended := make(chan error)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			ended <- lease.CompleteIn(ctx, &stuck{}, nil, time.Hour)
		}()
		time.Sleep(time.Second)
		distrusted(t, lease)
		if err := <-ended; !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		s.set(nil, nil)
		release(t, lease) // which was not settled
	})
}

// book runs a booking under the key.
func book(ctx context.Context, c *dibs.Client, l *journal.Journal, key string, o *dibs.OnceOptions) (string, error) {
	return dibs.OnceIn(ctx, c, l, key, o, func(ctx context.Context) (string, error) {
		journal.Write(ctx, key)
		return "booked " + key, nil
	})
}

func TestOnceInEnds(t *testing.T) {
	five := []journal.Ending{journal.Conflicted, journal.Conflicted, journal.Conflicted, journal.Conflicted, journal.Conflicted}
	for name, c := range map[string]struct {
		ends []journal.Ending
		want error // of the first caller
		runs int   // of the first caller
		rows int   // after the first caller
	}{
		"Conflicts":        {five[:4], nil, 5, 1},
		"TooManyConflicts": {five, dibs.ErrRolledBack, 5, 0},
		"Refused":          {[]journal.Ending{journal.Refused}, dibs.ErrRolledBack, 1, 0},
		"Unanswered":       {[]journal.Ending{journal.Unanswered}, nil, 1, 1},
		"CutOff":           {[]journal.Ending{journal.CutOff}, dibs.ErrRolledBack, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				client, l := newClient(t, s, nil), journal.New(s, c.ends...)
				runs := 0
				run := func() (string, error) {
					return dibs.OnceIn(t.Context(), client, l, "k", nil, func(ctx context.Context) (string, error) {
						runs++
						journal.Write(ctx, "k")
						return "booked", nil
					})
				}
				got, err := run()
				if !errors.Is(err, c.want) || err == nil && got != "booked" || err != nil && got != "" {
					t.Errorf("the first caller got %q, %v; want the error %v", got, err, c.want)
				}
				if errors.Is(err, dibs.ErrLost) || errors.Is(err, dibs.ErrStore) {
					t.Errorf("the first caller got %v", err)
				}
				if runs != c.runs || len(l.Rows()) != c.rows {
					t.Errorf("it ran %d times and left %d rows; want %d and %d", runs, len(l.Rows()), c.runs, c.rows)
				}
				if got, err := run(); err != nil || got != "booked" || len(l.Rows()) != 1 {
					t.Errorf("the second caller got %q, %v, and %d rows", got, err, len(l.Rows()))
				}
				client.Close()
			})
		})
	}
}

func TestOnceInWithoutItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c, l := newClient(t, s, nil), journal.New(s.Store, journal.Unanswered)
		s.set(failing("settle", errCut), nil)
		_, err := book(t.Context(), c, l, "k", nil)
		if !errors.Is(err, dibs.ErrStore) || errors.Is(err, dibs.ErrRolledBack) || errors.Is(err, dibs.ErrLost) {
			t.Errorf("with an unknown outcome the caller got %v", err)
		}
		s.set(nil, nil)
		if got, err := book(t.Context(), c, l, "k", nil); err != nil || got != "booked k" || len(l.Rows()) != 1 {
			t.Errorf("the next caller got %q, %v, and the journal has %q", got, err, l.Rows())
		}
	})
}

// A record that was too old to be given out, with what this run would leave, says
// nothing of a transaction that was rolled back.
func TestOnceInTellsItsRecordFromAnOlderOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c, l := newClient(t, s, nil), journal.New(s.Store, journal.Committed, journal.CutOff)
		o := &dibs.OnceOptions{MaxAge: time.Minute}
		if _, err := book(t.Context(), c, l, "k", o); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		s.set(nil, func(verb string) error {
			if verb == "settle" {
				s.set(nil, nil)
				return errCut // the client does not learn that the lease was ended without the record
			}
			return nil
		})
		_, err := book(t.Context(), c, l, "k", o)
		if err == nil || errors.Is(err, dibs.ErrStore) || len(l.Rows()) != 1 {
			t.Errorf("what was rolled back got %v, and the journal has %q", err, l.Rows())
		}
	})
}

// A record that would be forgotten by now is not missed.
func TestOnceInForgetsSoonerThanTheStoreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c, l := newClient(t, s, nil), journal.New(s.Store, journal.Unanswered)
		start := time.Now()
		s.set(func(verb string) error {
			if verb == "settle" && time.Since(start) < 2*time.Second {
				return errCut
			}
			return nil
		}, nil)
		_, err := book(t.Context(), c, l, "k", &dibs.OnceOptions{Retention: time.Second})
		if !errors.Is(err, dibs.ErrStore) || errors.Is(err, dibs.ErrLost) || len(l.Rows()) != 1 {
			t.Errorf("got %v, and the journal has %q", err, l.Rows())
		}
	})
}

// refusal is a transaction that is rolled back for a reason.
type refusal struct{ why error }

func (r refusal) Commit(context.Context, store.Settlement) error {
	return errors.Join(dibs.ErrRolledBack, r.why)
}

func (refusal) Rollback() {}

func (refusal) Conflicted(error) bool { return false }

func TestOnceInFails(t *testing.T) {
	declined := errors.New("declined")
	for name, remember := range map[string]bool{"Forgotten": false, "Remembered": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				c, l := newClient(t, s, nil), journal.New(s)
				runs := 0
				for range 2 {
					_, err := dibs.OnceIn(t.Context(), c, l, "k", &dibs.OnceOptions{
						Remember: func(error) bool { return remember },
					}, func(ctx context.Context) (int, error) {
						runs++
						journal.Write(ctx, "k")
						return 0, declined
					})
					if err == nil || err.Error() != declined.Error() {
						t.Errorf("got %v", err)
					}
				}
				if want := map[bool]int{false: 2, true: 1}[remember]; runs != want || len(l.Rows()) != 0 {
					t.Errorf("it ran %d times, want %d; the journal has %q", runs, want, l.Rows())
				}
			})
		})
	}
}

func TestOnceInEndsEveryWay(t *testing.T) {
	for name, leave := range map[string]func(context.Context){
		"Panic":  func(context.Context) { panic("no") },
		"Goexit": func(context.Context) { runtime.Goexit() },
		"Release": func(ctx context.Context) {
			lease, _ := dibs.FromContext(ctx)
			if err := lease.Release(); err != nil {
				panic(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				c, l := newClient(t, s, nil), journal.New(s)
				var err error
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { _ = recover() }()
					_, err = dibs.OnceIn(t.Context(), c, l, "k", nil, func(ctx context.Context) (int, error) {
						journal.Write(ctx, "k")
						leave(ctx)
						return 1, nil
					})
				}()
				<-done
				if name == "Release" && !errors.Is(err, dibs.ErrRolledBack) {
					t.Errorf("a run that gave its key up got %v", err)
				}
				if len(l.Rows()) != 0 {
					t.Errorf("the journal has %q", l.Rows())
				}
				if held, err := c.Held(t.Context(), "k"); held || err != nil {
					t.Errorf("held: %v, %v", held, err)
				}
			})
		})
	}
}

// TestOnceInLosesItsLease: that fn met a store that did not answer hides nothing.
func TestOnceInLosesItsLease(t *testing.T) {
	for _, fails := range []error{nil, &dibs.StoreError{Op: "renew", Err: errCut}} {
		synctest.Test(t, func(t *testing.T) {
			s := newFaulty(newStore(t))
			c, l := newClient(t, s, &dibs.Options{TTL: time.Second}), journal.New(s.Store)
			s.set(failing("renew", errCut), nil)
			_, err := dibs.OnceIn(t.Context(), c, l, "k", nil, func(ctx context.Context) (int, error) {
				journal.Write(ctx, "late")
				<-ctx.Done()
				return 1, fails
			})
			if !errors.Is(err, dibs.ErrLost) || fails != nil && !errors.Is(err, fails) || len(l.Rows()) != 0 {
				t.Errorf("got %v, and the journal has %q", err, l.Rows())
			}
		})
	}
}

func TestOnceInIsValidated(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		run := func(context.Context) (int, error) { panic("it ran") }
		if _, err := dibs.OnceIn(t.Context(), c, nil, "k", nil, run); err == nil {
			t.Error("no Transactor, and no error")
		}
		if _, err := dibs.OnceIn(t.Context(), c, journal.New(s), "k", &dibs.OnceOptions{AtMostOnce: true}, run); err == nil {
			t.Error("AtMostOnce, and no error")
		}
		if _, err := dibs.OnceIn(t.Context(), c, journal.New(s), "k", &dibs.OnceOptions{Retention: -1}, run); err == nil {
			t.Error("a negative retention, and no error")
		}
	})
}
