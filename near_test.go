package dibs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

func TestNear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, nil)
		places := make([]dibs.Place, 10)
		for i := range places {
			var err error
			if places[i], err = c.Reserve(t.Context(), "k", time.Hour, nil); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		near := map[int]time.Duration{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, n := range []int{5, 2, 0, -1} {
			wg.Go(func() {
				if err := c.Near(t.Context(), places[9], n, nil); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				near[n] = time.Since(start)
			})
		}
		for _, p := range places[:9] {
			lease, err := c.Redeem(t.Context(), p, nil)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			if err := lease.Release(); err != nil {
				t.Fatal(err)
			}
		}
		wg.Wait()
		// The place of who holds the key is in nobody's way.
		for n, ms := range map[int]int{5: 300, 2: 600, 0: 800, -1: 900} {
			want := time.Duration(ms) * time.Millisecond
			if near[n] < want || near[n] > want+110*time.Millisecond {
				t.Errorf("%d places before it after %v, want %v and a little", n, near[n], want)
			}
		}
		if err := c.GiveUp(t.Context(), places[9]); err != nil {
			t.Error(err)
		}
		if err := c.Near(t.Context(), places[9], 0, nil); err != nil {
			t.Errorf("a place that stands no more: %v", err)
		}
		empty(t, s)
	})
}

// TestNearAmongIsToldBeforeItAsks: that the turn of another place has come is not
// forgotten when it is told while the first one is found to be near.
func TestNearAmongIsToldBeforeItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, nil)
		holder, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		var places [2]dibs.Place
		for i := range places {
			if places[i], err = c.Reserve(t.Context(), "k", time.Hour, nil); err != nil {
				t.Fatal(err)
			}
		}
		next, last := places[0], places[1]
		isNear := func(dibs.Standing) bool {
			if err := holder.Release(); err != nil { // which has the next one told
				t.Error(err)
			}
			return true
		}
		found, err := c.NearAmong(t.Context(), last, []dibs.Place{next}, dibs.Pace{}, isNear, nil)
		if err != nil || found != last {
			t.Fatalf("found %v, %v; want the one that is near", found, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		found, err = c.NearAmong(ctx, last, []dibs.Place{next}, dibs.Pace{}, func(dibs.Standing) bool { return false }, nil)
		if err != nil || found != next {
			t.Errorf("found %v, %v; want the one whose turn has come", found, err)
		}
		for _, p := range places {
			if err := c.GiveUp(t.Context(), p); err != nil {
				t.Error(err)
			}
		}
		empty(t, s)
	})
}

// TestStandings looks at many places in one call, and in another one when that fails.
func TestStandings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		f := newFaulty(s)
		c := newClient(t, f, nil)
		holder, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		var places []dibs.Place
		for range 20 {
			p, err := c.Reserve(t.Context(), "k", time.Hour, nil)
			if err != nil {
				t.Fatal(err)
			}
			places = append(places, p)
		}
		check := func() {
			t.Helper()
			standings, err := c.Standings(t.Context(), places, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range standings {
				if want := (dibs.Standing{Waits: true, Placed: true, Ahead: i}); s != want {
					t.Errorf("place %d stands so: %+v, want %+v", i, s, want)
				}
			}
		}
		before, _, _ := f.counts()
		check()
		if after, _, _ := f.counts(); after != before+1 {
			t.Errorf("%d calls for %d places", after-before, len(places))
		}
		lost := errors.New("connection reset")
		var cut sync.Once
		f.set(func(string) (err error) {
			cut.Do(func() { err = lost })
			return err
		}, nil)
		check()
		f.set(func(string) error { return lost }, nil)
		if _, err := c.Standings(t.Context(), places, nil); !errors.Is(err, dibs.ErrStore) || !errors.Is(err, lost) {
			t.Errorf("a store that is away: %v, want ErrStore", err)
		}
		f.set(func(string) error {
			time.Sleep(4 * time.Second)
			return lost
		}, nil)
		stopped := errors.New("stopped")
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(2*time.Second, func() { stop(stopped) })
		if _, err := c.Standings(ctx, places, nil); !errors.Is(err, stopped) {
			t.Errorf("a context that ends: %v, want its cause", err)
		}
		f.set(nil, nil)
		if err := holder.Release(); err != nil {
			t.Error(err)
		}
		for _, p := range places {
			if err := c.GiveUp(t.Context(), p); err != nil {
				t.Error(err)
			}
		}
		empty(t, s)
	})
}
