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

// endings are the ways to end a lease whose errors leave it to the holder to go on.
var endings = map[string]func(context.Context, *dibs.Lease) error{
	"Complete": func(ctx context.Context, l *dibs.Lease) error { return l.Complete(ctx, []byte("answer"), time.Hour) },
	"Abandon":  func(ctx context.Context, l *dibs.Lease) error { return l.Abandon(ctx) },
	"Undo":     func(ctx context.Context, l *dibs.Lease) error { return l.Undo(ctx) },
}

// eachEnding runs a test of each of them in simulated time.
func eachEnding(t *testing.T, test func(t *testing.T, end func(context.Context, *dibs.Lease) error)) {
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, end) })
		})
	}
}

// distrusted checks that nothing of the lease says that it is held.
func distrusted(t *testing.T, l *dibs.Lease) {
	t.Helper()
	err := l.Err()
	if !errors.Is(err, dibs.ErrLost) || !strings.Contains(err.Error(), l.Key().Digest()) ||
		!strings.Contains(err.Error(), "its settlement was not answered; it may be over") {
		t.Errorf("Err is %v", err)
	}
	if ctx := l.Context(); ctx.Err() == nil || context.Cause(ctx) != err {
		t.Errorf("the context's error is %v, and its cause %v", ctx.Err(), context.Cause(ctx))
	}
	if err := l.Save(t.Context(), []byte("half")); !errors.Is(err, dibs.ErrLost) {
		t.Errorf("Save returned %v", err)
	}
	if l.Until().After(time.Now()) {
		t.Errorf("it is trusted for %v more", time.Until(l.Until()))
	}
}

// slow is a store behind a line that resets the connection of a settlement, and delivers the
// settlement later.
type slow struct {
	*faulty
	by   time.Duration // 0: in time, and answered
	sent sync.WaitGroup
}

func (s *slow) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if s.by == 0 {
		return s.faulty.Settle(ctx, settlements, errs)
	}
	settlements, by := append([]store.Settlement(nil), settlements...), s.by
	s.sent.Go(func() {
		time.Sleep(by)
		_ = s.Store.Settle(context.Background(), settlements, make([]error, len(settlements)))
	})
	return errCut
}

// TestALeaseIsNotTrustedAfterItsSettlement: a settlement that was not answered is carried out,
// at once or after the lease was renewed once more. Another caller gets the key, and at no
// moment after the error do both believe to hold it.
func TestALeaseIsNotTrustedAfterItsSettlement(t *testing.T) {
	for _, by := range []time.Duration{1, dibs.DefaultTTL / 2} {
		eachEnding(t, func(t *testing.T, end func(context.Context, *dibs.Lease) error) {
			s := newStore(t)
			line := &slow{faulty: newFaulty(s), by: by}
			c, other := newClient(t, line, nil), newClient(t, s, nil)
			lease, err := c.Acquire(t.Context(), "k", nil)
			testkit.Must(t, err)
			if err := end(t.Context(), lease); !errors.Is(err, dibs.ErrStore) {
				t.Errorf("the settlement returned %v", err)
			}
			distrusted(t, lease)
			next := await(t, other, nil)
			time.Sleep(by - 1)
			if _, renews, _ := line.counts(); by > dibs.DefaultTTL/3 && renews == 0 {
				t.Error("the lease is not renewed any more")
			}
			distrusted(t, lease)
			second := next.got(t)
			if second.Err() != nil {
				t.Errorf("the second holder's lease: %v", second.Err())
			}
			distrusted(t, lease)
			line.by = 0
			if err := lease.Release(); !errors.Is(err, dibs.ErrLost) || !strings.Contains(err.Error(), "may be over") {
				t.Errorf("Release returned %v", err)
			}
			testkit.Check(t, second.Err())
			testkit.Check(t, second.Release())
			line.sent.Wait()
		})
	}
}

// TestASettlementIsRepeated: a settlement that did not arrive can be sent again for as long as
// renewals succeed, but the lease is not trusted meanwhile.
func TestASettlementIsRepeated(t *testing.T) {
	eachEnding(t, func(t *testing.T, end func(context.Context, *dibs.Lease) error) {
		s := newStore(t)
		line := newFaulty(s)
		c := newClient(t, line, nil)
		lease, err := c.Acquire(t.Context(), "k", nil)
		testkit.Must(t, err)
		line.set(failing("settle", errCut), nil)
		if err := end(t.Context(), lease); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("the settlement returned %v", err)
		}
		time.Sleep(3 * dibs.DefaultTTL)
		distrusted(t, lease)
		line.set(nil, nil)
		testkit.Must(t, end(t.Context(), lease))
		distrusted(t, lease)
		testkit.Check(t, lease.Release())
		if held, err := c.Held(t.Context(), "k"); held || err != nil {
			t.Errorf("the key is held: %v, %v", held, err)
		}
	})
}

// answering is a store that answers settlements with an error of the element, after a time.
type answering struct {
	*memstore.Store
	err  error
	late time.Duration
}

func (s *answering) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if s.err == nil {
		return s.Store.Settle(ctx, settlements, errs)
	}
	time.Sleep(s.late)
	for i := range errs {
		errs[i] = s.err
	}
	return nil
}

// TestWhatIsNotDoneEndsNoTrust: a settlement that the store refuses, or that is not sent, leaves
// the lease as it is. An error that does not say that nothing was done ends the trust.
func TestWhatIsNotDoneEndsNoTrust(t *testing.T) {
	ended, end := context.WithCancel(context.Background())
	end()
	strange := errors.New("the record was written, and not replicated")
	for _, test := range []struct {
		name   string
		answer error
		ctx    context.Context
		want   error
		trust  bool
	}{
		{"full", dibs.ErrFull, nil, dibs.ErrFull, true},
		{"too large", dibs.ErrTooLarge, nil, dibs.ErrTooLarge, true},
		{"busy", dibs.ErrBusy, nil, dibs.ErrBusy, true},
		{"not sent", nil, ended, dibs.ErrStore, true},
		{"unknown", strange, nil, dibs.ErrStore, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			eachEnding(t, func(t *testing.T, end func(context.Context, *dibs.Lease) error) {
				s := &answering{newStore(t), test.answer, 0}
				c := newClient(t, s, nil)
				lease, err := c.Acquire(t.Context(), "k", nil)
				testkit.Must(t, err)
				ctx := test.ctx
				if ctx == nil {
					ctx = t.Context()
				}
				if err := end(ctx, lease); !errors.Is(err, test.want) {
					t.Errorf("the settlement returned %v", err)
				}
				if test.trust {
					testkit.Check(t, lease.Err())
				} else {
					distrusted(t, lease)
				}
				s.err = nil
				testkit.Check(t, end(t.Context(), lease))
				testkit.Check(t, lease.Release())
			})
		})
	}
}

// TestASettlementThatWaitsBehindAnotherIsNotSent: its caller goes away while the call of another
// one is under way, so nothing was done. A call that is under way may be done.
func TestASettlementThatWaitsBehindAnotherIsNotSent(t *testing.T) {
	withFaults(t, func(t *testing.T, line *faulty, c *dibs.Client) {
		first, err := c.Acquire(t.Context(), "first", nil)
		testkit.Must(t, err)
		second, err := c.Acquire(t.Context(), "second", nil)
		testkit.Must(t, err)
		line.set(func(verb string) error {
			if verb == "settle" {
				time.Sleep(3 * time.Second)
			}
			return nil
		}, nil)
		var calls sync.WaitGroup
		give := func(l *dibs.Lease, after time.Duration) {
			time.Sleep(after)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := l.Abandon(ctx); !errors.Is(err, dibs.ErrStore) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: got %v", l.Key().Name, err)
			}
		}
		calls.Go(func() { give(first, 0) })
		calls.Go(func() { give(second, time.Second) })
		calls.Wait()
		distrusted(t, first)
		testkit.Check(t, second.Err())
		line.set(nil, nil)
		time.Sleep(time.Second)
		if err := first.Abandon(t.Context()); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("the first lease is over, and to abandon it again returned %v", err)
		}
		release(t, second)
	})
}

// TestALeaseInsideAnotherIsSettled: the context of a lease ends with that of the lease around it,
// whose settlement was not answered. The inner lease was not settled, so it can be.
func TestALeaseInsideAnotherIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		line := newFaulty(s)
		c := newClient(t, line, nil)
		outer, err := c.Acquire(t.Context(), "outer", nil)
		testkit.Must(t, err)
		inner, err := c.Acquire(outer.Context(), "inner", nil)
		testkit.Must(t, err)
		line.set(nil, func(string) error { return errCut })
		if err := outer.Undo(t.Context()); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		line.set(nil, nil)
		if err := inner.Err(); err != outer.Err() {
			t.Errorf("the inner lease says %v, and the outer one %v", err, outer.Err())
		}
		testkit.Check(t, inner.Complete(t.Context(), []byte("answer"), time.Hour))
		if err := outer.Release(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("got %v", err)
		}
	})
}

// TestErrWhileASettlementIsUnderWay: the key may be another caller's by then, so Err does not say
// that it is held. A refusal leaves the lease as it was.
func TestErrWhileASettlementIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, &answering{newStore(t), dibs.ErrFull, 3 * time.Second}, nil)
		lease, err := c.Acquire(t.Context(), "k", nil)
		testkit.Must(t, err)
		until := lease.Until()
		ended := make(chan error)
		go func() { ended <- lease.Abandon(t.Context()) }()
		time.Sleep(time.Second)
		if err := lease.Err(); !errors.Is(err, dibs.ErrLost) || lease.Until().After(time.Now()) {
			t.Errorf("while it is settled, the lease says %v", err)
		}
		testkit.Check(t, lease.Context().Err())
		if err := <-ended; !errors.Is(err, dibs.ErrFull) {
			t.Errorf("got %v", err)
		}
		testkit.Check(t, lease.Err())
		if !lease.Until().Equal(until) {
			t.Errorf("the lease is trusted until %v, not %v", lease.Until(), until)
		}
		if err := lease.Release(); !errors.Is(err, dibs.ErrFull) {
			t.Errorf("got %v", err)
		}
	})
}

// TestLeadEndsAlthoughItsReleaseIsNotAnswered: the function has returned while it led, so it is not
// called again.
func TestLeadEndsAlthoughItsReleaseIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		line := newFaulty(s)
		c := newClient(t, line, nil)
		calls := 0
		err := c.Lead(t.Context(), "k", nil, func(context.Context) error {
			calls++
			line.set(nil, func(string) error { line.set(nil, nil); return errCut })
			return errStop
		})
		if err != errStop || calls != 1 {
			t.Errorf("Lead returned %v after %d calls", err, calls)
		}
		time.Sleep(time.Minute)
		empty(t, s)
	})
}

var errStop = errors.New("the leader stops")
