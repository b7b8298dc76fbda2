package dibs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// storeLine is a line about the store.
type storeLine struct {
	Level, Msg, Error string
	Calls             int
}

// linesAboutStore reads a log that has only lines about the store.
func linesAboutStore(t *testing.T, log *bytes.Buffer) (all []storeLine) {
	t.Helper()
	for d := json.NewDecoder(log); d.More(); {
		var l storeLine
		testkit.Must(t, d.Decode(&l))
		if l.Level != "WARN" || (l.Error != "") != (l.Msg == "the store fails") {
			t.Errorf("a line is %+v", l)
		}
		all = append(all, l)
	}
	return all
}

// logged returns a client whose log goes to the buffer, and its store.
func logged(t *testing.T) (*dibs.Client, *faulty, *bytes.Buffer) {
	t.Helper()
	store, log := newFaulty(newStore(t)), new(bytes.Buffer)
	return newClient(t, store, &dibs.Options{Logger: slog.New(slog.NewJSONHandler(log, nil))}), store, log
}

var errNetwork = errors.New("the network is down")

// TestStoreAwayIsLoggedOnceAMinute: while the store does not answer, a client's log has one line a
// minute with the number of calls that failed, and one when it answers again.
func TestStoreAwayIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store, log := logged(t)
		ask := func() { _, _ = c.Held(t.Context(), "k") }
		ask()
		if log.Len() > 0 {
			t.Errorf("the store answers; the log has %s", log)
		}
		var failed atomic.Int32
		store.set(func(string) error { failed.Add(1); return errNetwork }, nil)
		for began := time.Now(); time.Since(began) < 150*time.Second; time.Sleep(5 * time.Second) {
			ask()
		}
		store.set(nil, nil)
		ask()
		time.Sleep(time.Millisecond)
		ask()
		lines := linesAboutStore(t, log)
		if len(lines) != 4 || lines[3].Msg != "the store answers again" || !strings.Contains(lines[0].Error, errNetwork.Error()) {
			t.Fatalf("in two and a half minutes the log has %+v", lines)
		}
		counted := 0
		for _, l := range lines {
			counted += l.Calls
		}
		if counted != int(failed.Load()) || lines[0].Calls != 1 {
			t.Errorf("%d calls failed; the lines are %+v", failed.Load(), lines)
		}
	})
}

// TestHolderLogsTheStoreAway: a program that only holds a key logs that its renewals fail, and that
// they are answered again.
func TestHolderLogsTheStoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store, log := logged(t)
		l := acquire(t, c, "k", nil)
		time.Sleep(dibs.DefaultTTL / 4)
		store.set(func(string) error { return errNetwork }, nil)
		time.Sleep(dibs.DefaultTTL / 4)
		store.set(nil, nil)
		time.Sleep(dibs.DefaultTTL)
		testkit.Must(t, l.Release())
		if lines := linesAboutStore(t, log); len(lines) != 2 || lines[0].Msg != "the store fails" || lines[1].Msg != "the store answers again" {
			t.Errorf("the log has %+v", lines)
		}
	})
}

// TestWhatIsNoOutage: errors about one key, and callers that stop waiting, are not logged as the
// store's. A store without space is, and a store that does not answer for a second.
func TestWhatIsNoOutage(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		store bool
	}{
		{"busy", fmt.Errorf("a row is locked: %w", dibs.ErrBusy), false},
		{"too large", dibs.ErrTooLarge, false},
		{"full", fmt.Errorf("%w: out of memory", dibs.ErrFull), true},
		{"another program's value", errors.New("another program has written to the key"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := new(bytes.Buffer)
				client := newClient(t, full{newFaulty(newStore(t)), c.err}, &dibs.Options{Logger: slog.New(slog.NewJSONHandler(log, nil))})
				_, _ = client.Held(t.Context(), "k")
				if lines := linesAboutStore(t, log); (len(lines) > 0) != c.store {
					t.Errorf("the log has %+v", lines)
				}
			})
		})
	}
	for name, c := range map[string]struct {
		limit time.Duration
		store bool
	}{"a caller's short limit": {50 * time.Millisecond, false}, "a second": {time.Second, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := new(bytes.Buffer)
				client := newClient(t, silent{newFaulty(newStore(t))}, &dibs.Options{Logger: slog.New(slog.NewJSONHandler(log, nil))})
				ctx, cancel := context.WithTimeout(t.Context(), c.limit)
				defer cancel()
				if err := client.TryDo(ctx, "k", func(context.Context) error { return nil }); err == nil {
					t.Fatal("a store that does not answer granted a key")
				}
				lines := linesAboutStore(t, log)
				if (len(lines) > 0) != c.store {
					t.Errorf("the log has %+v", lines)
				}
			})
		})
	}
}

// silent is a store whose claims get no answer. Each call is made for its caller alone.
type silent struct{ *faulty }

func (silent) Batching() store.Batching { return store.Batching{Direct: true} }

func (silent) Claim(ctx context.Context, _ []store.Claim, _ []store.Answer) error {
	<-ctx.Done()
	return ctx.Err()
}
