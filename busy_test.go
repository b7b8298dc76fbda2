package dibs_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
)

// crowded is a store that is too busy with every key at times.
type crowded struct {
	*memstore.Store

	queues bool // calls are queued for as long as it is busy, or until they are ended

	mu    sync.Mutex
	until time.Time
}

// Batching hides that of memstore.
func (s *crowded) Batching() dibs.Batching { return dibs.Batching{Direct: s.queues} }

func (s *crowded) busyFor(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Now().Add(d)
}

func (s *crowded) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
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
		answers[i] = dibs.Answer{Err: dibs.ErrBusy}
	}
	return nil
}

func TestWhoWaitsOutlastsABusyStore(t *testing.T) {
	for name, c := range map[string]struct {
		busy time.Duration
		o    *dibs.AcquireOptions
		want error
	}{
		"WaitsOn":    {time.Minute, nil, nil},
		"WaitsLong":  {time.Minute, &dibs.AcquireOptions{Wait: 2 * time.Minute}, nil},
		"WaitsShort": {time.Minute, &dibs.AcquireOptions{Wait: 10 * time.Second}, dibs.ErrBusy},
		"NoWait":     {time.Minute, &dibs.AcquireOptions{NoWait: true}, dibs.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &crowded{Store: newStore(t)}
				client := newClient(t, s, nil)
				s.busyFor(c.busy)
				start := time.Now()
				lease, err := client.Acquire(t.Context(), "k", c.o)
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
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Whoever ends a call while the store is busy gets what it was ended with.
func TestTheCallersEndIsNotTheStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &crowded{Store: newStore(t), queues: true}
		client := newClient(t, s, nil)
		s.busyFor(time.Minute)
		gone := fmt.Errorf("gone, as another call failed: %w", dibs.ErrBusy)
		for what, call := range map[string]func(context.Context) error{
			"Acquire": func(ctx context.Context) error {
				_, err := client.Acquire(ctx, "k", &dibs.AcquireOptions{NoWait: true})
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
				_, err := client.Reserve(ctx, "k", time.Hour, nil)
				return err
			},
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(gone) })
			if err := call(ctx); !errors.Is(err, gone) {
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
		lease, err := a.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
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
		if err := lease.Release(); err != nil {
			t.Fatal(err)
		}
		if err := <-granted; err != nil {
			t.Errorf("who waited got %v", err)
		}
	})
}

// TestStandsIsOfAnswers: who waits is told how it stands with each answer, and not again
// with an old one while the store is busy.
func TestStandsIsOfAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &crowded{Store: newStore(t)}
		c := newClient(t, s, nil)
		holder, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		told, done := make(chan dibs.Standing, 100), make(chan error, 1)
		go func() {
			lease, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{Stands: func(s dibs.Standing) { told <- s }})
			if err == nil {
				err = lease.Release()
			}
			done <- err
		}()
		time.Sleep(2100 * time.Millisecond)
		before := len(told)
		s.busyFor(5 * time.Second)
		time.Sleep(4 * time.Second)
		if n := len(told); before < 4 || n != before {
			t.Errorf("it was told %d times in two seconds, and %d times by a store that is busy", before, n-before)
		}
		time.Sleep(2 * time.Second)
		if err := holder.Release(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
