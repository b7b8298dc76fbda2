package jobs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// returns gives a job to a worker that another one had before, when the key is held and
// no worker may wait for it. Limit is the Mutex's, due when the job was.
func returns(t *testing.T, limit time.Duration, due time.Time) (a *attempt, c *dibs.Client, err error) {
	t.Helper()
	o := &Options{Seats: 1, Limit: limit}
	if limit > 0 {
		o.Otherwise = dibs.Fail
	}
	m, c := inside(t, o)
	lease, err := c.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Release() })
	_, left := context.WithCancel(t.Context())
	r := m.lines.room(Pool{})
	r.seated = append(r.seated, &seat{room: r, next: true, left: left})
	wake := func(context.Context) (bool, error) { return true, nil }
	if a, err = m.attempt(t.Context(), Job{Kind: "test", ID: "1", Key: "k", Tries: 2, Due: due, Wake: wake}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.over)
	lease2, err := a.turn(t.Context())
	if err == nil {
		_ = lease2.Release()
		t.Fatal("it was granted a key that is held")
	}
	return a, c, err
}

// TestReturnWithoutPlace: a job that comes back without a place, and finds no seat, has
// one when it is put off, or it would be the last one again and again.
func TestReturnWithoutPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, c, err := returns(t, 0, time.Now())
		if _, ok := errors.AsType[*ComeBackError](err); !ok {
			t.Fatalf("it is to come back: %v", err)
		}
		if s, err := c.Standing(t.Context(), a.place, nil); err != nil || !s.Waits {
			t.Errorf("it was put off, and its place stands so: %+v, %v", s, err)
		}
	})
}

// TestReturnAfterLimit: the Limit of a job that comes back is seen to, also when it finds
// no seat.
func TestReturnAfterLimit(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			if _, _, err := returns(t, time.Minute, time.Now().Add(-time.Minute-after)); !errors.Is(err, errLimit) {
				t.Errorf("%v after its limit was over: %v", after, err)
			}
		})
	}
}
