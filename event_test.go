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
	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

func TestObserverSeesEveryOutcomeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		var mu sync.Mutex
		var events []dibs.Event
		var c *dibs.Client
		c = newClient(t, s, &dibs.Options{Label: "test", Observe: func(_ context.Context, e dibs.Event) {
			_ = c.Key("k") // it may use the client
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		}})
		secret := "customer 4711"
		ctx := t.Context()

		l, err := c.Acquire(ctx, secret, nil)
		testkit.Must(t, err)
		_ = c.TryDo(ctx, secret, func(context.Context) error { return nil }) // refused
		var wg sync.WaitGroup
		wg.Go(func() { _ = c.Do(ctx, secret, func(context.Context) error { time.Sleep(time.Second); return nil }) })
		time.Sleep(time.Minute)
		_ = l.Abandon(ctx)
		wg.Wait()
		l, err = c.Acquire(ctx, secret, nil)
		testkit.Must(t, err)
		_ = l.Complete(ctx, nil, time.Hour)
		l, err = c.Acquire(ctx, secret, nil)
		testkit.Must(t, err)
		_, _ = s.ForceRelease(ctx, l.Key(), "")
		_ = l.Release()
		_ = l.Release()

		var kinds []dibs.EventKind
		for _, e := range events {
			kinds = append(kinds, e.Kind)
			if e.Key() != l.Key().Digest() || e.Label != "test" {
				t.Errorf("an event says %+v", e)
			}
		}
		want := []dibs.EventKind{"acquired", "refused", "abandoned", "acquired", "released", "acquired", "completed", "acquired", "lost"}
		slices.Sort(kinds)
		slices.Sort(want)
		if !slices.Equal(kinds, want) {
			t.Errorf("observed %v, want %v", kinds, want)
		}
		for _, e := range events {
			switch {
			case e.Kind == "refused" && !errors.Is(e.Err, dibs.ErrHeld),
				e.Kind == "lost" && !errors.Is(e.Err, dibs.ErrLost),
				e.Kind == "abandoned" && e.Held != time.Minute,
				e.Kind == "released" && (!e.Queued || e.Held != time.Second || e.Waited != time.Minute || e.Attempt != 2):
				t.Errorf("observed %+v", e)
			}
		}
	})
}

func TestObserverSeesEveryStoreCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		var mu sync.Mutex
		var calls []dibs.StoreCall
		c := newClient(t, s, &dibs.Options{ObserveStore: func(call dibs.StoreCall) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, call)
		}})
		l := acquire(t, c, "k", nil)
		time.Sleep(dibs.DefaultTTL / 2)
		ctx, cancel := context.WithTimeout(t.Context(), 800*time.Millisecond) // between two questions
		defer cancel()
		if _, err := c.Acquire(ctx, "k", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		synctest.Wait()
		_ = l.Release()
		size, undone := map[string]int{}, 0
		for _, call := range calls {
			if call.Err != nil {
				t.Errorf("observed %+v", call)
			}
			size[call.Verb] += call.Size
			undone += call.Undone
		}
		if size["renew"] != 1 || size["settle"] != 2 || size["claim"] < 2 || undone != 1 {
			t.Errorf("observed %v, undone %d: %+v", size, undone, calls)
		}
	})
}

// full is a store whose elements fail with an error.
type full struct {
	store.Store
	err error
}

func (s full) Claim(_ context.Context, _ []store.Claim, answers []store.Answer) error {
	for i := range answers {
		answers[i].Err = s.err
	}
	return nil
}

// TestFullStoreIsACallThatFailed: a call of which the store carried something out, or nothing, is
// counted with the error of an element if that is the store's fault.
func TestFullStoreIsACallThatFailed(t *testing.T) {
	for _, test := range []struct {
		err    error
		counts string
	}{
		{fmt.Errorf("out of memory: %w", store.ErrFull), "full"},
		{store.ErrQueueFull, ""},
		{store.ErrTooLarge, ""},
		{store.ErrBusy, ""},
		{nil, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			var got []string
			c := newClient(t, full{newStore(t), test.err}, &dibs.Options{ObserveStore: func(call dibs.StoreCall) {
				if kind := ""; call.Verb == "claim" {
					if call.Err != nil {
						kind = errtype.Of(call.Err)
					}
					got = append(got, kind)
				}
			}})
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, _ = c.Held(ctx, "k")
			cancel()
			if len(got) == 0 || got[0] != test.counts {
				t.Errorf("%v is counted as %q; want %q", test.err, got, test.counts)
			}
		})
	}
}
