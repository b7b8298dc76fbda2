package dibs_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

func TestPlacesAreRedeemedInTheOrderTheyWereReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		enqueuer, worker := newClient(t, s, nil), newClient(t, s, nil)
		var places []dibs.Place
		for range 5 {
			p, _, err := enqueuer.Reserve(t.Context(), "k", time.Hour, nil)
			testkit.Must(t, err)
			text, err := p.MarshalText()
			testkit.Must(t, err)
			var q dibs.Place
			if err := q.UnmarshalText(text); err != nil || q != p {
				t.Fatalf("%s came back as %+v, %v", text, q, err)
			}
			places = append(places, q)
		}
		if err := worker.TryDo(t.Context(), "k", func(context.Context) error { return nil }); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("a caller overtook the places: %v", err)
		}
		if _, err := worker.TryRedeem(t.Context(), places[3], nil); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("the fourth place came first: %v", err)
		}
		var mu sync.Mutex // should they not exclude each other
		var order []int
		var wg sync.WaitGroup
		for i := len(places) - 1; i >= 0; i-- { // redeemed in the wrong order
			wg.Go(func() {
				lease, err := worker.Redeem(t.Context(), places[i], nil)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Minute)
				testkit.Check(t, lease.Release())
			})
			synctest.Wait()
		}
		wg.Wait()
		for i, n := range order {
			if i != n {
				t.Fatalf("granted in the order %v", order)
			}
		}
		empty(t, s)
	})
}

func TestPlaceStaysWhenRedeemGivesUp(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		holder := acquire(t, c, "k", nil)
		p, _, err := c.Reserve(t.Context(), "k", time.Hour, nil)
		testkit.Must(t, err)
		if _, err := c.Redeem(t.Context(), p, &dibs.RedeemOptions{AcquireOptions: dibs.AcquireOptions{Wait: time.Second}}); !errors.Is(err, dibs.ErrHeld) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Redeem(ctx, p, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			lease, err := c.Acquire(t.Context(), "k", nil)
			if err != nil {
				t.Error(err)
				return
			}
			_ = lease.Release()
		})
		synctest.Wait()
		testkit.Check(t, holder.Release())
		time.Sleep(time.Minute)
		lease, err := c.TryRedeem(t.Context(), p, nil)
		if err != nil {
			t.Fatalf("the place has ended: %v", err)
		}
		_ = lease.Release()
		wg.Wait()
		empty(t, s)
	})
}

func FuzzPlace(f *testing.F) {
	for _, key := range []dibs.Key{{Name: "k"}, {Namespace: "ns", Name: strings.Repeat("\x00", 512)}} {
		text, err := dibs.Place{Key: key, Token: store.NewToken()}.MarshalText()
		testkit.Must(f, err)
		f.Add(text)
	}
	f.Add([]byte("dibs1..."))
	f.Fuzz(func(t *testing.T, text []byte) {
		var p dibs.Place
		if p.UnmarshalText(text) != nil {
			if p != (dibs.Place{}) {
				t.Errorf("a text that was refused left %+v", p)
			}
			return
		}
		again, err := p.MarshalText()
		if err != nil || string(again) != string(text) {
			t.Errorf("%q was read and written as %q, %v", text, again, err)
		}
	})
}

func TestGraceBoundsHowLongAPlaceIsInTheWay(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		if _, _, err := c.Reserve(t.Context(), "k", 24*time.Hour, &dibs.PlaceOptions{Grace: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
		second, _, err := c.Reserve(t.Context(), "k", 24*time.Hour, &dibs.PlaceOptions{Grace: 10 * time.Second})
		testkit.Must(t, err)
		time.Sleep(time.Hour) // no other caller wants the key, so the place is not lost
		start := time.Now()
		_, err = c.TryRedeem(t.Context(), second, nil)
		held, ok := errors.AsType[*dibs.HeldError](err)
		if !ok || held.Ahead != 1 || held.Left != 0 {
			t.Fatalf("the second place was answered %+v, want to be kept by the first for 10 s", err)
		}
		lease, err := c.Redeem(t.Context(), second, nil)
		testkit.Must(t, err)
		if waited := time.Since(start); waited < 10*time.Second || waited > 11*time.Second {
			t.Errorf("a place without a redeemer blocked for %v", waited)
		}
		testkit.Check(t, lease.Release())
		empty(t, s)
	})
}

func TestProlongStartsGraceAnew(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		p, _, err := c.Reserve(t.Context(), "k", time.Hour, &dibs.PlaceOptions{Grace: 10 * time.Second})
		testkit.Must(t, err)
		start := time.Now()
		if err := c.TryDo(t.Context(), "k", func(context.Context) error { return nil }); !errors.Is(err, dibs.ErrHeld) {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		if standing, err := c.Prolong(t.Context(), p, time.Hour, &dibs.PlaceOptions{Grace: 30 * time.Second}); err != nil || standing != (dibs.PlaceStatus{Exists: true}) {
			t.Fatalf("%+v, %v", standing, err)
		}
		testkit.Must(t, c.Do(t.Context(), "k", func(context.Context) error { return nil }))
		if took := time.Since(start); took < 39*time.Second || took > 40*time.Second {
			t.Errorf("the prolonged place blocked until %v", took)
		}
		// It has ended, and is reserved again.
		last, _, err := c.Reserve(t.Context(), "k", time.Minute, nil)
		testkit.Must(t, err)
		if standing, err := c.Prolong(t.Context(), p, time.Hour, nil); err != nil || standing.Ahead != 1 {
			t.Fatalf("%+v, %v", standing, err)
		}
		testkit.Check(t, c.CancelPlace(t.Context(), last))
		if held, err := c.Held(t.Context(), "k"); err != nil || !held {
			t.Errorf("the place that was taken anew holds the key: %v, %v", held, err)
		}
		testkit.Check(t, c.CancelPlace(t.Context(), p))
		empty(t, s)
	})
}

func TestGraceIsCountedAnewAfterACrash(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		p, _, err := c.Reserve(t.Context(), "k", time.Hour, &dibs.PlaceOptions{Grace: time.Second})
		testkit.Must(t, err)
		lease, err := c.Redeem(t.Context(), p, &dibs.RedeemOptions{Grace: time.Minute})
		testkit.Must(t, err)
		testkit.Must(t, lease.Abandon(t.Context()))
		start := time.Now()
		testkit.Must(t, c.Do(t.Context(), "k", func(context.Context) error { return nil }))
		if took := time.Since(start); took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("the place of a worker that crashed blocked for %v, want a minute", took)
		}
		empty(t, s)
	})
}

// TestPlaceStatusOfAnUnknownKey: a place of a key whose outcome is unknown cannot be redeemed,
// and is not over.
func TestPlaceStatusOfAnUnknownKey(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
		p, _, err := c.Reserve(t.Context(), "k", time.Hour, nil)
		testkit.Must(t, err)
		o := &dibs.RedeemOptions{AcquireOptions: dibs.AcquireOptions{AtMostOnce: true}}
		lease, err := c.Redeem(t.Context(), p, o)
		testkit.Must(t, err)
		if s, err := c.PlaceStatus(t.Context(), p); err != nil || !s.Exists {
			t.Errorf("while it is held: %+v, %v", s, err)
		}
		testkit.Must(t, lease.Abandon(t.Context()))
		if s, err := c.PlaceStatus(t.Context(), p); !errors.Is(err, dibs.ErrUnknown) {
			t.Errorf("of the key whose outcome is unknown: %+v, %v", s, err)
		}
	})
}

// TestProlongWithoutAnswerKeepsThePlace: a place that was there before is not undone when the store
// does not answer, or when the caller does not wait for the answer.
func TestProlongWithoutAnswerKeepsThePlace(t *testing.T) {
	for name, c := range map[string]struct {
		after func(string) error
		want  error
	}{
		"lost":     {func(string) error { return errors.New("the connection was reset") }, dibs.ErrStore},
		"given up": {func(string) error { time.Sleep(3 * time.Second); return nil }, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			withFaults(t, func(t *testing.T, f *faulty, client *dibs.Client) {
				p, _, err := client.Reserve(t.Context(), "k", time.Hour, nil)
				testkit.Must(t, err)
				f.set(nil, c.after)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				if _, err := client.Prolong(ctx, p, time.Hour, nil); !errors.Is(err, c.want) {
					t.Errorf("got %v; want %v", err, c.want)
				}
				f.set(nil, nil)
				time.Sleep(10 * time.Second)
				if s, err := client.PlaceStatus(t.Context(), p); !s.Exists || err != nil {
					t.Errorf("the place is %+v, %v", s, err)
				}
			})
		})
	}
}

// reserve reserves a place for an hour.
func reserve(t *testing.T, c *dibs.Client) dibs.Place {
	t.Helper()
	p, _, err := c.Reserve(t.Context(), "k", time.Hour, nil)
	testkit.Must(t, err)
	return p
}

// redeem redeems a place whose turn has come.
func redeem(t *testing.T, c *dibs.Client, p dibs.Place) *dibs.Lease {
	t.Helper()
	lease, err := c.TryRedeem(t.Context(), p, nil)
	testkit.Must(t, err)
	return lease
}

// TestPlaceIsRedeemedByOneAtATime: a job that was handed to several workers runs
// once at a time. A later one is woken and joins at the end.
func TestPlaceIsRedeemedByOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		p := reserve(t, newClient(t, s, nil))
		const work = time.Minute + 230*time.Millisecond // not when they ask by themselves
		inside, runs := 0, 0
		start := time.Now()
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, c := range []*dibs.Client{newClient(t, s, nil), newClient(t, newFaulty(s), nil)} {
			for range 3 {
				wg.Go(func() {
					lease, err := c.Redeem(t.Context(), p, nil)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if inside++; inside != 1 {
						t.Errorf("%d at once", inside)
					}
					mu.Unlock()
					time.Sleep(work)
					mu.Lock()
					inside--
					runs++
					mu.Unlock()
					testkit.Check(t, lease.Release())
				})
			}
		}
		wg.Wait()
		if runs != 6 {
			t.Errorf("%d of 6 ran", runs)
		}
		if d := time.Since(start); d > 6*work+10*time.Millisecond {
			t.Errorf("they took %v for %v of work: wake-ups were lost", d, 6*work)
		}
		empty(t, s)
	})
}

// TestPlaceIsRedeemedAgain: however a worker fails, its job comes before jobs that
// were enqueued later, and learns what was done.
func TestPlaceIsRedeemedAgain(t *testing.T) {
	for name, fail := range map[string]func(*testing.T, *faulty, *dibs.Lease){
		"abandoned": func(t *testing.T, _ *faulty, l *dibs.Lease) {
			testkit.Check(t, l.Abandon(t.Context()))
		},
		"crashed": func(t *testing.T, line *faulty, l *dibs.Lease) {
			line.set(func(string) error { return errCut }, nil)
			<-l.Context().Done()
			time.Sleep(time.Minute)
		},
		"lost and released": func(t *testing.T, line *faulty, l *dibs.Lease) {
			line.set(func(string) error { return errCut }, nil)
			<-l.Context().Done()
			line.set(nil, nil)
			if err := l.Release(); !errors.Is(err, dibs.ErrLost) {
				t.Errorf("Release returned %v", err)
			}
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				line := newFaulty(s)
				c, worker := newClient(t, s, nil), newClient(t, line, nil)
				job := reserve(t, c)
				first := redeem(t, worker, job)
				testkit.Must(t, first.Save(t.Context(), []byte("half")))
				var order []string
				var wg sync.WaitGroup
				wg.Go(func() {
					err := c.Do(t.Context(), "k", func(context.Context) error {
						order = append(order, "the one behind")
						return nil
					})
					testkit.Check(t, err)
				})
				synctest.Wait()
				fail(t, line, first)
				time.Sleep(time.Minute)
				second := redeem(t, c, job)
				order = append(order, "the job")
				if second.Attempt() != 2 || string(second.Progress()) != "half" {
					t.Errorf("attempt %d with progress %q", second.Attempt(), second.Progress())
				}
				if second.ID() == first.ID() || second.Fence() <= first.Fence() {
					t.Error("the second attempt is the first one")
				}
				testkit.Check(t, second.Release())
				wg.Wait()
				if len(order) != 2 || order[0] != "the job" {
					t.Errorf("they ran in the order %q", order)
				}
				line.set(nil, nil)
				empty(t, s)
			})
		})
	}
}

// TestRedeemerGoesAway: a claim from a place whose caller went away while it was
// under way leaves the place as it was.
func TestRedeemerGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c, other := newClient(t, s, nil), newClient(t, s.Store, nil)
		job, behind := reserve(t, other), reserve(t, other)
		ctx, cancel := context.WithCancel(t.Context())
		gate := make(chan struct{})
		s.set(nil, func(string) error { <-gate; return nil })
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Redeem(ctx, job, nil); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
		if _, err := other.TryRedeem(t.Context(), job, nil); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("before the grant is known: %v", err)
		}
		s.set(nil, nil)
		close(gate)
		synctest.Wait()
		if _, err := other.TryRedeem(t.Context(), behind, nil); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("the place behind: %v", err)
		}
		lease := redeem(t, other, job)
		if lease.Attempt() != 1 {
			t.Errorf("attempt %d", lease.Attempt())
		}
		testkit.Check(t, lease.Release())
		testkit.Check(t, redeem(t, other, behind).Release())
		empty(t, s)
	})
}

// TestRedeemTakesItsOptions: Detach and StopTimeout hold for a lease from a place as
// with any other.
func TestRedeemTakesItsOptions(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		lease, err := c.Redeem(ctx, reserve(t, c), &dibs.RedeemOptions{AcquireOptions: dibs.AcquireOptions{TTL: 20 * time.Second, StopTimeout: 10 * time.Second, Detach: true}})
		testkit.Must(t, err)
		if d := time.Until(lease.Until()); d != 10*time.Second {
			t.Errorf("trusted for %v, want the TTL without the margin", d)
		}
		cancel()
		if err := lease.Err(); err != nil {
			t.Errorf("the lease ended with the caller's context: %v", err)
		}
		testkit.Check(t, lease.Release())
		empty(t, s)
	})
}

// TestPlaceIsCancelledUnderItsLease: to cancel a place leaves its lease alone.
func TestPlaceIsCancelledUnderItsLease(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		job := reserve(t, c)
		lease := redeem(t, c, job)
		testkit.Check(t, c.CancelPlace(t.Context(), job))
		time.Sleep(time.Hour)
		if err := lease.Err(); err != nil {
			t.Errorf("the worker lost its lease: %v", err)
		}
		if err := c.CancelPlace(t.Context(), job); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("giving it up twice: %v", err)
		}
		testkit.Check(t, lease.Release())
		empty(t, s)
	})
}

// TestAnswersEndThePlace: a place that is redeemed when a record answers, or for something else than
// the key was used for, does not keep others from the key.
func TestAnswersEndThePlace(t *testing.T) {
	for name, c := range map[string]struct {
		asked dibs.Fingerprint
		want  error
	}{
		"done":     {dibs.Fingerprint{1}, dibs.ErrDone},
		"mismatch": {dibs.Fingerprint{2}, dibs.ErrMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, s *memstore.Store, client *dibs.Client) {
				first := acquire(t, client, "k", &dibs.AcquireOptions{Fingerprint: dibs.Fingerprint{1}})
				place := reserve(t, client)
				testkit.Must(t, first.Complete(t.Context(), nil, time.Hour))
				o := &dibs.RedeemOptions{AcquireOptions: dibs.AcquireOptions{Fingerprint: c.asked, MaxAge: dibs.AnyAge}}
				if _, err := client.Redeem(t.Context(), place, o); !errors.Is(err, c.want) {
					t.Errorf("got %v", err)
				}
				synctest.Wait()
				for e, err := range s.List(t.Context(), store.Query{Places: true}) {
					if err != nil || e.Reserved != 0 || len(e.Places) != 0 {
						t.Errorf("left behind: %+v, %v", e, err)
					}
				}
			})
		})
	}
}
