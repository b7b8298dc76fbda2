package casstore_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/casstore"
)

var key = store.Key{Name: "k"}

func open(t *testing.T, kv casstore.KV, o *casstore.Options) *casstore.Store {
	t.Helper()
	s, err := casstore.Open(t.Context(), kv, o)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, s.Close()) })
	return s
}

func claim(t *testing.T, s *casstore.Store, token store.Token, mode store.Mode, ttl time.Duration) store.Answer {
	t.Helper()
	a := make([]store.Answer, 1)
	testkit.Must(t, s.Claim(t.Context(), []store.Claim{{Key: key, Token: token, Mode: mode, TTL: ttl, PlaceTTL: ttl, Permits: 1, Weight: 1}}, a))
	return a[0]
}

func settle(t *testing.T, s *casstore.Store, x store.Settlement) error {
	t.Helper()
	errs := make([]error, 1)
	x.Key = key
	testkit.Must(t, s.Settle(t.Context(), []store.Settlement{x}, errs))
	return errs[0]
}

// keys returns how many keys have an object.
func keys(t *testing.T, kv casstore.KV) int {
	t.Helper()
	names, err := kv.List(t.Context(), "k/", "", 1000)
	testkit.Must(t, err)
	return len(names)
}

// TestFencesRiseOverAFreeKey: a claim that found no object is written late. In between, another
// caller had the key, gave it back, and the store was pruned. So a free key keeps its object for
// an hour, and not for longer.
func TestFencesRiseOverAFreeKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &casstore.Memory{}
		var holds atomic.Bool
		late := &kv{KV: m, put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
			if strings.HasPrefix(name, "k/") && !holds.Swap(true) {
				time.Sleep(59 * time.Second)
			}
			return m.Put(ctx, name, value, version)
		}}
		slow, fast := open(t, late, nil), open(t, m, nil)
		answered := make(chan store.Answer, 1)
		go func() { answered <- claim(t, slow, store.NewToken(), store.Try, time.Hour) }()
		time.Sleep(time.Second)
		token := store.NewToken()
		first := claim(t, fast, token, store.Try, time.Hour)
		testkit.Check(t, settle(t, fast, store.Settlement{Token: token}))
		time.Sleep(30 * time.Second)
		_, err := fast.Prune(t.Context(), 0)
		testkit.Check(t, err)
		if a := <-answered; a.State != store.Granted || a.Fence <= first.Fence {
			t.Errorf("the late claim is answered %+v, after the fence %d", a, first.Fence)
		}
		if _, err := fast.ForceRelease(t.Context(), key, ""); err != nil {
			t.Error(err)
		}
		last := uint64(0)
		for range 12 { // a step must not end the count
			time.Sleep(10 * time.Minute)
			a := claim(t, fast, token, store.Look, time.Hour)
			_, err = fast.Prune(t.Context(), 0)
			testkit.Check(t, err)
			last = max(last, a.Fence)
		}
		if n := keys(t, m); n != 0 {
			t.Errorf("after two hours %d objects are left", n)
		}
		if a := claim(t, fast, token, store.Try, time.Hour); a.State != store.Granted || a.Fence <= last {
			t.Errorf("the next claim is answered %+v, after the fence %d", a, last)
		}
	})
}

// TestBounds: a queue and an object have a bound, and a call that is refused has changed nothing.
func TestBounds(t *testing.T) {
	s := open(t, &casstore.Memory{}, &casstore.Options{MaxWaiters: 2, MaxObject: 10_000})
	holder := store.NewToken()
	claim(t, s, holder, store.Try, time.Hour)
	for i := range 3 {
		a := claim(t, s, store.NewToken(), store.Queue, time.Hour)
		if full := errors.Is(a.Err, store.ErrQueueFull); full != (i == 2) {
			t.Errorf("waiter %d is answered %v", i+1, a.Err)
		}
	}
	large := store.Settlement{Token: holder, Outcome: store.Keep, Data: make([]byte, 9000), Retention: time.Hour}
	if err := settle(t, s, large); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("a record that does not fit is answered %v", err)
	}
	large.Data = large.Data[:2000]
	testkit.Check(t, settle(t, s, large))
}

// TestManyCallersOfOneKey: fifty processes take the key at once, and one of them gets it; all get
// their turn, one after the other.
func TestManyCallersOfOneKey(t *testing.T) {
	m := &casstore.Memory{}
	var all sync.WaitGroup
	var granted, others atomic.Int64
	start := make(chan struct{})
	for range 50 {
		s := open(t, m, nil)
		all.Go(func() {
			<-start
			switch a := claim(t, s, store.NewToken(), store.Try, time.Hour); {
			case a.State == store.Granted:
				granted.Add(1)
			case a.State != store.Held:
				others.Add(1)
			}
		})
	}
	close(start)
	all.Wait()
	if granted.Load() != 1 || others.Load() != 0 {
		t.Errorf("%d callers have the key, and %d neither have it nor are told that it is held", granted.Load(), others.Load())
	}
}

// TestWrittenAndRefused: a client library of the engine sends a write twice, so the answer to the
// second is a conflict, although the first was written. What was done is done once, and known.
func TestWrittenAndRefused(t *testing.T) {
	m := &casstore.Memory{}
	twice := &kv{KV: m, put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
		v, err := m.Put(ctx, name, value, version)
		if err == nil && strings.HasPrefix(name, "k/") {
			_, err = m.Put(ctx, name, value, version)
		}
		return v, err
	}}
	s, token := open(t, twice, nil), store.NewToken()
	if a := claim(t, s, token, store.Try, time.Hour); a.State != store.Granted || a.Attempt != 1 {
		t.Errorf("the claim is answered %+v", a)
	}
	if err := settle(t, s, store.Settlement{Token: token}); err != nil {
		t.Errorf("the settlement is answered %v", err)
	}
}

// TestUnusedStoreMakesNoCalls: the clock moves while a key is held, and for a minute at most after
// the last call.
func TestUnusedStoreMakesNoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		m := &casstore.Memory{}
		counted := &kv{
			KV: m,
			get: func(ctx context.Context, name string) ([]byte, string, error) {
				calls.Add(1)
				return m.Get(ctx, name)
			},
			put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
				calls.Add(1)
				return m.Put(ctx, name, value, version)
			},
		}
		s := open(t, counted, &casstore.Options{Tick: time.Second, PruneEvery: -1})
		claim(t, s, store.NewToken(), store.Try, 24*time.Hour)
		before := calls.Load()
		time.Sleep(30*time.Second + time.Millisecond)
		if n := calls.Load() - before; n != 30 {
			t.Errorf("%d calls in 30 s while a key is held, want a write for each tick", n)
		}
		time.Sleep(time.Minute)
		before = calls.Load()
		time.Sleep(time.Hour)
		if n := calls.Load() - before; n != 0 {
			t.Errorf("%d calls in an hour in which nobody uses the store", n)
		}
		began := time.Now()
		claim(t, open(t, m, nil), store.NewToken(), store.Try, time.Hour)
		if d := time.Since(began); d > 0 {
			t.Errorf("the first call of a new process takes %v, although no move of the clock is to be waited for", d)
		}
	})
}

// TestDistantClockReachesTheEndOfALease: with each tick the time of a call is lost. The process that
// asked for a key moves the clock until the lease is over all the same, so that a later caller has it.
func TestDistantClockReachesTheEndOfALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &casstore.Memory{}
		o := &casstore.Options{Tick: 20 * time.Millisecond, PruneEvery: -1}
		claim(t, open(t, distant(m, &atomic.Int64{}), o), store.NewToken(), store.Try, time.Second)
		time.Sleep(10 * time.Second)
		if a := claim(t, open(t, distant(m, &atomic.Int64{}), o), store.NewToken(), store.Try, time.Second); a.State != store.Granted {
			t.Errorf("ten seconds after a lease of one second began, the claim is answered %+v", a)
		}
	})
}

// TestClaimThatComesAfterItsUndo: the caller of a claim gives up while the write is on its way, and
// undoes. The write must not take the key then, whether the key was used before or not.
func TestClaimThatComesAfterItsUndo(t *testing.T) {
	for _, used := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := &casstore.Memory{}
			var network sync.WaitGroup
			var holds atomic.Bool
			late := &kv{KV: m, put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
				if strings.HasPrefix(name, "k/") && holds.Swap(false) {
					network.Go(func() {
						time.Sleep(2 * time.Second)
						_, _ = m.Put(context.Background(), name, value, version) // nobody hears of it
					})
					<-ctx.Done()
					return "", ctx.Err()
				}
				return m.Put(ctx, name, value, version)
			}}
			s, token := open(t, late, nil), store.NewToken()
			if used {
				claim(t, s, token, store.Try, time.Hour)
				testkit.Check(t, settle(t, s, store.Settlement{Token: token}))
				token = store.NewToken()
			}
			holds.Store(true)
			ctx, end := context.WithTimeout(t.Context(), time.Second)
			defer end()
			err := s.Claim(ctx, []store.Claim{{Key: key, Token: token, TTL: time.Hour, Permits: 1, Weight: 1}}, make([]store.Answer, 1))
			if err == nil {
				t.Fatal("the claim is answered")
			}
			if err := settle(t, s, store.Settlement{Token: token, Outcome: store.Undo}); !errors.Is(err, store.ErrLost) {
				t.Errorf("the undo is answered %v", err)
			}
			network.Wait()
			if a := claim(t, s, store.NewToken(), store.Try, time.Hour); a.State != store.Granted {
				t.Errorf("used %v: another claim is answered %+v", used, a)
			}
		})
	}
}

// TestManyLeases: a process that holds many keys of a distant engine renews each in time, because no
// renewal waits for another.
func TestManyLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := dibs.New(open(t, slow(&casstore.Memory{}, 50*time.Millisecond, nil), nil), &dibs.Options{TTL: 6 * time.Second})
		testkit.Must(t, err)
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				lease, err := client.TryAcquire(t.Context(), strconv.Itoa(i), nil)
				if err != nil {
					t.Errorf("key %d: %v", i, err)
					return
				}
				select {
				case <-lease.Context().Done():
					t.Errorf("key %d: %v", i, context.Cause(lease.Context()))
				case <-time.After(time.Minute):
				}
				testkit.Check(t, lease.Release())
			})
		}
		all.Wait()
		testkit.Check(t, client.Close())
	})
}
