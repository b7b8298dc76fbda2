package survey

import (
	"context"
	"errors"
	"iter"
	"maps"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// counted counts the looks at a store, and can make them fail or take long.
type counted struct {
	*memstore.Store
	looks atomic.Int32
	takes time.Duration
	err   error
}

func (c *counted) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	c.looks.Add(1)
	time.Sleep(c.takes)
	if c.err != nil {
		return func(yield func(store.Entry, error) bool) { yield(store.Entry{}, c.err) }
	}
	return c.Store.List(ctx, q)
}

// bubble runs a test with a store and a client in a bubble.
func bubble(t *testing.T, test func(*testing.T, *counted, *dibs.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		under, err := memstore.New(nil)
		testkit.Must(t, err)
		defer under.Close()
		client, err := dibs.New(under, nil)
		testkit.Must(t, err)
		defer client.Close()
		test(t, &counted{Store: under}, client)
	})
}

// TestReport: it has the counts of a namespace and the age of the oldest wait, as it was seen.
func TestReport(t *testing.T) {
	bubble(t, func(t *testing.T, in *counted, client *dibs.Client) {
		s := New(in, nil)
		lease, err := client.TryAcquire(t.Context(), "k", nil)
		testkit.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		for range 2 {
			go func() {
				_, err := client.Acquire(ctx, "k", nil)
				done <- err
			}()
		}
		// A record, which is not live.
		done2, err := client.TryAcquire(t.Context(), "done", nil)
		testkit.Must(t, err)
		testkit.Must(t, done2.Complete(t.Context(), nil, time.Hour))
		synctest.Wait()
		r, err := s.Look(t.Context(), 0)
		testkit.Must(t, err)
		if got, want := r.Namespaces[""], (Counts{Waiters: 2}); got != want {
			t.Errorf("the first look counts %+v; want %+v", got, want)
		}
		time.Sleep(20 * time.Second)
		r, err = s.Look(t.Context(), 0)
		testkit.Must(t, err)
		if got, want := r.Namespaces[""], (Counts{Waiters: 2, OldestWait: 20 * time.Second}); got != want {
			t.Errorf("the second look counts %+v; want %+v", got, want)
		}
		if len(r.Waits) != 1 || r.Waits[0].Key.Name != "k" || len(r.Waits[0].Seen) != 2 {
			t.Errorf("it lists %+v; want the key with its two waiters", r.Waits)
		}
		cancel()
		<-done
		<-done
		synctest.Wait()
		r, err = s.Look(t.Context(), 0)
		testkit.Must(t, err)
		if got, want := r.Namespaces[""], (Counts{}); got != want || len(r.Waits) != 0 {
			t.Errorf("without waiters it counts %+v and lists %v", got, r.Waits)
		}
		time.Sleep(Long)
		r, err = s.Look(t.Context(), 0)
		testkit.Must(t, err)
		if got, want := r.Namespaces[""], (Counts{Long: 1}); got != want || len(r.Waits) != 1 {
			t.Errorf("a key is held for %v: it counts %+v and lists %v", Long, got, r.Waits)
		}
		testkit.Must(t, lease.Release())
	})
}

// TestUnknown: an unknown outcome is counted and listed, and is not a wait.
func TestUnknown(t *testing.T) {
	bubble(t, func(t *testing.T, in *counted, _ *dibs.Client) {
		answers := make([]store.Answer, 3)
		claims := make([]store.Claim, 3)
		for i := range claims {
			claims[i] = store.Claim{
				Key: store.Key{Namespace: "n", Name: strconv.Itoa(i)}, Token: store.Token{byte(i + 1)}, TTL: time.Second, Permits: 1, Weight: 1, AtMostOnce: true,
			}
		}
		testkit.Must(t, in.Claim(t.Context(), claims[:1], answers[:1]))
		time.Sleep(time.Minute)
		testkit.Must(t, in.Claim(t.Context(), claims[1:], answers[1:]))
		time.Sleep(time.Minute)
		ns := "n"
		r, err := New(in, &ns).Look(t.Context(), 0)
		testkit.Must(t, err)
		if got, want := r.Namespaces["n"], (Counts{Unknown: 3}); got != want || len(r.Namespaces) != 1 {
			t.Errorf("it counts %+v; want %+v of n alone", r.Namespaces, want)
		}
		if len(r.Unknown) != 3 || r.Unknown[0].Key.Name != "0" || len(r.Waits) != 0 {
			t.Errorf("it lists %+v and %+v; want the oldest first", r.Unknown, r.Waits)
		}
	})
}

// TestAsksSeldom: the store is asked once in maxAge, and a fiftieth of the time, for an error, too.
func TestAsksSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, in *counted, _ *dibs.Client) {
		s := New(in, nil)
		look := func(want int32) {
			t.Helper()
			if _, err := s.Look(t.Context(), MetricsAge); !errors.Is(err, in.err) || in.looks.Load() != want {
				t.Errorf("after %d looks at the store the error is %v; want %d and %v", in.looks.Load(), err, want, in.err)
			}
		}
		look(1)
		time.Sleep(MetricsAge - 1)
		look(1)
		time.Sleep(1)
		in.takes = 2 * time.Second
		look(2)
		time.Sleep(in.takes + share*in.takes - patience - 1)
		look(2)
		time.Sleep(1)
		in.err, in.takes = errors.New("the store fails"), 0
		look(3)
		look(3)
		time.Sleep(MetricsAge)
		in.err = nil
		look(4)
	})
}

// TestDoesNotBlock: a store that takes long keeps no caller for more than a second. They get the
// last report, and all share the one look that continues.
func TestDoesNotBlock(t *testing.T) {
	bubble(t, func(t *testing.T, in *counted, _ *dibs.Client) {
		s := New(in, nil)
		began := time.Now()
		in.takes = 5 * time.Second
		for range 3 {
			if r, err := s.Look(t.Context(), MetricsAge); r != nil || !errors.Is(err, ErrCounting) {
				t.Errorf("before the first report it is %v, %v", r, err)
			}
		}
		if took := time.Since(began); took != 3*patience || in.looks.Load() != 1 {
			t.Errorf("three calls took %v and %d looks", took, in.looks.Load())
		}
		time.Sleep(in.takes)
		first, err := s.Look(t.Context(), time.Hour)
		testkit.Must(t, err)
		if first.Took != in.takes {
			t.Errorf("it took %v", first.Took)
		}
		time.Sleep(share * in.takes)
		for range 3 {
			if r, err := s.Look(t.Context(), 0); r != first || err != nil || in.looks.Load() != 2 {
				t.Errorf("during the second look it is %v, %v after %d looks", r, err, in.looks.Load())
			}
		}
		time.Sleep(in.takes)
		if r, err := s.Look(t.Context(), time.Hour); r == first || err != nil {
			t.Errorf("after the second look it is %v, %v", r, err)
		}
		// A caller that goes away does not end the look.
		time.Sleep(share * in.takes)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, _ = s.Look(gone, 0)
		time.Sleep(in.takes)
		if r, err := s.Look(t.Context(), time.Hour); r == nil || err != nil || in.looks.Load() != 3 {
			t.Errorf("after a caller has gone it is %v, %v after %d looks", r, err, in.looks.Load())
		}
	})
}

// TestComesBack: after an outage in which each look took the whole limit, there is a report again
// within as long as the outage took. A store that keeps failing is asked more and more seldom.
func TestComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, in *counted, _ *dibs.Client) {
		s := New(in, nil)
		began := time.Now()
		ask := func(until time.Duration) (err error) {
			for time.Since(began) < until {
				_, err = s.Look(t.Context(), 0)
				time.Sleep(time.Second)
			}
			return err
		}
		const outage = 40 * time.Second
		in.takes, in.err = limit, errors.New("the store hangs")
		if err := ask(outage); err != in.err {
			t.Errorf("during the outage the error is %v", err)
		}
		time.Sleep(limit) // of the look that continues
		in.takes, in.err = 0, nil
		if err := ask(2 * outage); err != nil {
			t.Errorf("%v after an outage of %v the error is %v", outage, outage, err)
		}
		in.takes, in.err = limit, errors.New("the store hangs")
		_ = ask(24 * time.Hour)
		looks := in.looks.Load()
		if _ = ask(25 * time.Hour); in.looks.Load()-looks > int32(time.Hour/(share*limit)) {
			t.Errorf("a store that has failed for a day is looked at %d times in an hour", in.looks.Load()-looks)
		}
	})
}

// TestListsTheOldest: of many keys a report counts all and lists those with the oldest waits, of all
// namespaces and of each.
func TestListsTheOldest(t *testing.T) {
	keys := make([]Key, 3*listed)
	for i := range keys {
		keys[i].Key.Name, keys[i].Waited.For = strconv.Itoa(i), time.Duration(i)
		if i < 10 || i > listed/2 && i < listed {
			keys[i].Key.Namespace = "shop"
		}
	}
	r := Report{Waits: oldest(keys, func(k *Key) time.Duration { return k.Waited.For })}
	none, shop, bank := "", "shop", "bank"
	for _, test := range []struct {
		namespace *string
		n         int
		first     time.Duration
	}{{nil, listed, 3*listed - 1}, {&none, listed, 3*listed - 1}, {&shop, 10 + listed/2 - 1, listed - 1}, {&bank, 0, 0}} {
		_, got, _ := r.Of(test.namespace)
		if len(got) != test.n || test.n > 0 && got[0].Waited.For != test.first {
			t.Errorf("it lists %d keys; want %d, from %v on", len(got), test.n, test.first)
		}
	}
}

// TestWaitsThatBeganUnseen: what has waited when nobody looked has waited for at least as long as it was
// seen. What two looks soon after each other have seen to begin has waited that long.
func TestWaitsThatBeganUnseen(t *testing.T) {
	bubble(t, func(t *testing.T, in *counted, _ *dibs.Client) {
		s := New(in, nil)
		claim := func(name string) {
			t.Helper()
			c := store.Claim{Key: store.Key{Name: name}, Mode: store.Queue, TTL: time.Hour, PlaceTTL: 24 * time.Hour, Permits: 1, Weight: 1}
			for range 2 {
				c.Token = store.NewToken()
				testkit.Must(t, in.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1)))
			}
		}
		look := func() {
			t.Helper()
			_, err := s.Look(t.Context(), 0)
			testkit.Must(t, err)
		}
		claim("before the first look")
		time.Sleep(5 * time.Minute)
		look()
		time.Sleep(near)
		claim("between two looks")
		look()
		time.Sleep(near + 1)
		claim("between two looks that are far apart")
		look()
		in.err = errors.New("the store fails")
		time.Sleep(near)
		_, _ = s.Look(t.Context(), 0)
		in.err = nil
		time.Sleep(1)
		claim("after a look that failed")
		look()
		time.Sleep(time.Second)
		look()
		report, err := s.Look(t.Context(), time.Hour)
		testkit.Must(t, err)
		got := map[string]Wait{}
		for _, k := range report.Waits {
			if got[k.Key.Name] = k.Waited; k.Seen[0] != k.Waited {
				t.Errorf("of %s the waiter is seen for %v and the key for %v", k.Key.Name, k.Seen, k.Waited)
			}
		}
		want := map[string]Wait{
			"before the first look":                {3*near + 2 + time.Second, true},
			"between two looks":                    {2*near + 2 + time.Second, false},
			"between two looks that are far apart": {near + 1 + time.Second, true},
			"after a look that failed":             {time.Second, true},
		}
		if !maps.Equal(got, want) {
			t.Errorf("the waits are %v; want %v", got, want)
		}
	})
}
