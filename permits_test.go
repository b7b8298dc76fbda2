package dibs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
)

// A caller with another number of permits than the holders waits until they have gone.
func TestPermitsThatDifferAreWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		held, wanted int
		notes        bool // the store tells of turns
	}{
		"more":      {1, 3, true},
		"fewer":     {3, 1, true},
		"no notes":  {2, 5, false},
		"to 1 from": {2, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newStore(t)
				var s dibs.Store = memory
				if !c.notes {
					s = struct{ dibs.Store }{memory}
				}
				client := newClient(t, s, nil)
				first, err := client.Acquire(t.Context(), "k", &dibs.AcquireOptions{Permits: c.held})
				if err != nil {
					t.Fatal(err)
				}
				// Waiting in line with the first number, so that it holds on.
				behind := make(chan error, 1)
				go func() {
					behind <- doWith(client, &dibs.AcquireOptions{Permits: c.held}, 10*time.Second)
				}()
				start := time.Now()
				other := &dibs.AcquireOptions{Permits: c.wanted, Wait: time.Minute}
				got := make(chan error, 1)
				go func() { got <- doWith(client, other, 0) }()
				time.Sleep(20 * time.Second)
				select {
				case err := <-got:
					t.Fatalf("after %v: %v", time.Since(start), err)
				default:
				}
				if err := first.Release(); err != nil {
					t.Error(err)
				}
				if err := errors.Join(<-behind, <-got); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func doWith(c *dibs.Client, o *dibs.AcquireOptions, takes time.Duration) error {
	lease, err := c.Acquire(context.Background(), "k", o)
	if err != nil {
		return err
	}
	time.Sleep(takes)
	return lease.Release()
}

// What bounds the wait bounds this one too; NoWait has its answer at once.
func TestPermitsThatDifferBoundTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t, newStore(t), nil)
		held, err := client.Acquire(t.Context(), "k", &dibs.AcquireOptions{Permits: 2})
		if err != nil {
			t.Fatal(err)
		}
		for name, wait := range map[string]time.Duration{"NoWait": 0, "a moment": time.Millisecond, "a minute": time.Minute} {
			start := time.Now()
			_, err := client.Acquire(t.Context(), "k", &dibs.AcquireOptions{Permits: 3, NoWait: wait == 0, Wait: wait})
			p, ok := errors.AsType[*dibs.PermitsError](err)
			if !ok || !errors.Is(err, dibs.ErrHeld) || p.Have != 2 || p.Want != 3 || p.Waited != wait || time.Since(start) != wait {
				t.Errorf("%s: after %v: %v", name, time.Since(start), err)
			}
		}
		gone := errors.New("the caller has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(gone) })
		if _, err := client.Acquire(ctx, "k", nil); !errors.Is(err, gone) {
			t.Errorf("the context is over: %v", err)
		}
		// It would wait for itself.
		if _, err := client.Acquire(held.Context(), "k", &dibs.AcquireOptions{Permits: 3}); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("inside itself: %v", err)
		}
		// A place that was reserved with another number.
		place, _, err := client.Reserve(t.Context(), "k", time.Hour, &dibs.AcquireOptions{Permits: 2})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Redeem(t.Context(), place, &dibs.AcquireOptions{Permits: 1, Wait: time.Second}); !errors.Is(err, dibs.ErrPermits) {
			t.Errorf("redeemed: %v", err)
		}
		if err := errors.Join(client.GiveUp(t.Context(), place), held.Release()); err != nil {
			t.Error(err)
		}
		lease, err := client.Redeem(t.Context(), place, &dibs.AcquireOptions{Permits: 1, Wait: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
	})
}

var _ dibs.Notifier = (*memstore.Store)(nil)
