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
