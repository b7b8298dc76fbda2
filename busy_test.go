package dibs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// crowded is a store that is too busy with every key at times.
type crowded struct {
	*memstore.Store

	queues bool // calls are queued for as long as it is busy, or until they are ended

	mu    sync.Mutex
	until time.Time
}

// Batching hides that of memstore.
func (s *crowded) Batching() store.Batching { return store.Batching{Direct: s.queues} }

func (s *crowded) busyFor(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Now().Add(d)
}

func (s *crowded) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	s.mu.Lock()
	busy := time.Until(s.until)
	s.mu.Unlock()
	if busy <= 0 {
		return s.Store.Claim(ctx, claims, answers)
	}
	if s.queues {
		select {
		case <-ctx.Done():
		case <-time.After(busy):
		}
	}
	for i := range answers {
		answers[i] = store.Answer{Err: dibs.ErrBusy}
	}
	return nil
}

func (s *crowded) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	s.mu.Lock()
	busy := time.Until(s.until)
	s.mu.Unlock()
	if busy <= 0 {
		return s.Store.Settle(ctx, settlements, errs)
	}
	for i := range errs {
		errs[i] = dibs.ErrBusy
	}
	return nil
}

func TestWaiterOutlastsABusyStore(t *testing.T) {
	for name, c := range map[string]struct {
		busy time.Duration
		try  bool
		wait time.Duration
		want error
	}{
		"WaitsOn":    {time.Minute, false, 0, nil},
		"WaitsLong":  {time.Minute, false, 2 * time.Minute, nil},
		"WaitsShort": {time.Minute, false, 10 * time.Second, dibs.ErrBusy},
		"Tries":      {time.Minute, true, 0, dibs.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &crowded{Store: newStore(t)}
				client := newClient(t, s, nil)
				s.busyFor(c.busy)
				start := time.Now()
				acquire := client.Acquire
				if c.try {
					acquire = client.TryAcquire
				}
				lease, err := acquire(t.Context(), "k", &dibs.AcquireOptions{Wait: c.wait})
				if !errors.Is(err, c.want) || errors.Is(err, dibs.ErrStore) {
					t.Fatalf("got %v after %v; want %v", err, time.Since(start), c.want)
				}
				if err != nil {
					if limit := 11 * time.Second; time.Since(start) > limit {
						t.Errorf("it took %v", time.Since(start))
					}
					return
				}
				if took := time.Since(start); took < c.busy || took > c.busy+time.Second {
					t.Errorf("granted after %v", took)
				}
				testkit.Check(t, lease.Release())
			})
		})
	}
}

// A caller that ends its call while the store is busy gets the cause of its own context.
func TestTheCallersEndIsNotTheStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &crowded{Store: newStore(t), queues: true}
		client := newClient(t, s, nil)
		s.busyFor(time.Minute)
		busy := fmt.Errorf("rolled back, because another call failed: %w", dibs.ErrBusy)
		for what, call := range map[string]func(context.Context) error{
			"Acquire": func(ctx context.Context) error {
				_, err := client.TryAcquire(ctx, "k", nil)
				return err
			},
			"Acquire and wait": func(ctx context.Context) error {
				_, err := client.Acquire(ctx, "k", nil)
				return err
			},
			"Held": func(ctx context.Context) error {
				_, err := client.Held(ctx, "k")
				return err
			},
			"Reserve": func(ctx context.Context) error {
				_, _, err := client.Reserve(ctx, "k", time.Hour, nil)
				return err
			},
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(busy) })
			if err := call(ctx); !errors.Is(err, busy) {
				t.Errorf("%s returned %v", what, err)
			}
		}
	})
}

// A place in the queue outlasts it too, as long as the place lasts.
func TestAPlaceOutlastsABusyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &crowded{Store: newStore(t)}
		a, b := newClient(t, s, nil), newClient(t, s, nil)
		lease := acquire(t, a, "k", nil)
		granted := make(chan error)
		go func() {
			lease, err := b.Acquire(t.Context(), "k", nil)
			if err == nil {
				err = lease.Release()
			}
			granted <- err
		}()
		synctest.Wait()
		s.busyFor(30 * time.Second)
		time.Sleep(time.Minute)
		testkit.Must(t, lease.Release())
		if err := <-granted; err != nil {
			t.Errorf("the waiter got %v", err)
		}
	})
}

// A settlement that finds the store too busy with the key is made again, for as long as
// a call of the store may take or its caller waits; and a release after that in the
// background.
func TestSettlementsOutlastABusyStore(t *testing.T) {
	const storeTimeout = 5 * time.Second // the default of Options.Timeout
	complete := func(ctx context.Context, l *dibs.Lease) error { return l.Complete(ctx, []byte("done"), time.Hour) }
	release := func(_ context.Context, l *dibs.Lease) error { return l.Release() }
	for name, c := range map[string]struct {
		busy, limit time.Duration // how long the store is, and the caller waits
		settle      func(context.Context, *dibs.Lease) error
		takes       time.Duration
		want        error
		then        error // what is said of the key when the store is not busy any more
	}{
		"Release":       {3 * time.Second, time.Minute, release, 3 * time.Second, nil, nil},
		"ReleaseLong":   {20 * time.Second, time.Minute, release, storeTimeout, dibs.ErrBusy, nil},
		"Complete":      {3 * time.Second, time.Minute, complete, 3 * time.Second, nil, dibs.ErrDone},
		"CompleteLong":  {20 * time.Second, time.Minute, complete, storeTimeout, dibs.ErrBusy, dibs.ErrHeld},
		"CompleteShort": {20 * time.Second, time.Second, complete, time.Second, dibs.ErrBusy, dibs.ErrHeld},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &crowded{Store: newStore(t)}
				client := newClient(t, s, nil)
				lease := acquire(t, client, "k", nil)
				s.busyFor(c.busy)
				ctx, cancel := context.WithTimeout(t.Context(), c.limit)
				defer cancel()
				start := time.Now()
				if err := c.settle(ctx, lease); !errors.Is(err, c.want) || errors.Is(err, dibs.ErrStore) {
					t.Errorf("got %v; want %v", err, c.want)
				}
				if took := time.Since(start); took < c.takes-time.Second || took > c.takes+time.Second { // a pause lasts up to a second
					t.Errorf("it took %v; want %v", took, c.takes)
				}
				// What was released is free, and what was not completed is still held.
				time.Sleep(c.busy + 2*time.Second - time.Since(start))
				next, err := client.TryAcquire(t.Context(), "k", &dibs.AcquireOptions{MaxAge: dibs.AnyAge})
				if !errors.Is(err, c.then) {
					t.Errorf("then the key is %v; want %v", err, c.then)
				}
				for _, l := range []*dibs.Lease{lease, next} {
					if l != nil {
						testkit.Check(t, l.Release())
					}
				}
			})
		})
	}
}

// So is it when a place is given up.
func TestCancelPlaceOutlastsABusyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &crowded{Store: newStore(t)}
		client := newClient(t, s, nil)
		place, _, err := client.Reserve(t.Context(), "k", time.Hour, nil)
		testkit.Must(t, err)
		s.busyFor(3 * time.Second)
		testkit.Check(t, client.CancelPlace(t.Context(), place))
		testkit.Check(t, client.TryDo(t.Context(), "k", func(context.Context) error { return nil }))
	})
}

// lockedKey is a store in which another program keeps the key "stuck" locked: a call that settles it waits for
// two seconds.
type lockedKey struct{ *memstore.Store }

// Batching hides that of memstore.
func (lockedKey) Batching() store.Batching { return store.Batching{Parallel: 4} }

func (s lockedKey) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	isStuck := func(m store.Settlement) bool { return m.Key.Name == "stuck" }
	if !slices.ContainsFunc(settlements, isStuck) {
		return s.Store.Settle(ctx, settlements, errs)
	}
	time.Sleep(2 * time.Second)
	for i, m := range settlements {
		if isStuck(m) {
			errs[i] = dibs.ErrBusy
		} else if err := s.Store.Settle(ctx, []store.Settlement{m}, errs[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// A caller that gives up at another key does not wait for the undo of a key that the
// store is busy with, and keys that are released together do not wait for one of them.
func TestBusyKeyDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockedKey{newStore(t)}
		client, other := newClient(t, s, nil), newClient(t, s.Store, nil)
		all, err := client.AcquireAll(t.Context(), []string{"a", "stuck", "z"}, &dibs.AcquireOptions{TTL: 20 * time.Second})
		testkit.Must(t, err)
		start := time.Now()
		released := make(chan error, 1)
		go func() { released <- all.Release() }()
		for _, key := range []string{"a", "z"} {
			testkit.Check(t, other.Do(t.Context(), key, func(context.Context) error { return nil }))
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("the other keys were free after %v", took)
		}
		if err := <-released; !errors.Is(err, dibs.ErrBusy) {
			t.Errorf("got %v", err)
		}
		// From here on it is undone, again and again.
		held := acquire(t, other, "k", nil)
		for range 5 {
			time.Sleep(700 * time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second/10)
			if _, err := client.Acquire(ctx, "k", nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			cancel()
			time.Sleep(time.Second / 10)
			noWaiters(t, s)
		}
		testkit.Check(t, held.Release())
		time.Sleep(20 * time.Second) // until the client stops to release the key
	})
}

// What fn returned is kept although the store is busy with the key for a while, and
// no caller runs it again.
func TestOnceOutlastsABusyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &crowded{Store: newStore(t)}
		client := newClient(t, s, nil)
		runs := 0
		run := func(context.Context) (int, error) {
			if runs++; runs == 1 {
				s.busyFor(7 * time.Second) // longer than Options.Timeout
			}
			return runs, nil
		}
		for range 2 {
			if got, err := dibs.Once(t.Context(), client, "k", nil, run); got != 1 || err != nil {
				t.Errorf("got %d, %v", got, err)
			}
		}
	})
}

// A client that is closed makes nothing again but in the background.
func TestCloseWhileTheStoreIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &crowded{Store: newStore(t)}
		client, err := dibs.New(s, nil)
		testkit.Must(t, err)
		lease := acquire(t, client, "k", nil)
		s.busyFor(3 * time.Second)
		closed := make(chan error, 1)
		time.AfterFunc(time.Second, func() { closed <- client.Close() })
		start := time.Now()
		if err := lease.Release(); !errors.Is(err, dibs.ErrBusy) || time.Since(start) != time.Second {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		testkit.Check(t, <-closed)
		testkit.Check(t, newClient(t, s, nil).TryDo(t.Context(), "k", func(context.Context) error { return nil }))
	})
}
