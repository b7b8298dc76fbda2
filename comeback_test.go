package dibs_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

func TestComeBack(t *testing.T) {
	tests := map[string]struct {
		otherwise dibs.Otherwise
		held      time.Duration // how long somebody else has the key
		ran       bool
		leased    bool
		noted     int
		want      error
	}{
		"free":                     {dibs.Fail, 0, true, true, 0, nil},
		"free by the third time":   {dibs.Fail, 250 * time.Millisecond, true, true, 0, nil},
		"held: fail":               {dibs.Fail, time.Hour, false, false, 0, dibs.ErrHeld},
		"held: run anyway":         {dibs.RunAnyway, time.Hour, true, false, 0, nil},
		"held: give up, noted":     {dibs.GiveUp, time.Hour, false, false, 1, dibs.ErrGaveUp},
		"free: nothing is noted":   {dibs.GiveUp, 0, true, true, 0, nil},
		"free in time: no run too": {dibs.RunAnyway, 250 * time.Millisecond, true, true, 0, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				c := newClient(t, s, nil)
				if test.held > 0 {
					l, err := c.Acquire(t.Context(), "k", nil)
					if err != nil {
						t.Fatal(err)
					}
					timer := time.AfterFunc(test.held, func() { _ = l.Release() })
					defer func() {
						if timer.Stop() {
							_ = l.Release()
						}
					}()
				}
				noted := 0
				o := &dibs.ComeBackOptions{Attempts: 5, Otherwise: test.otherwise}
				if test.otherwise == dibs.GiveUp {
					o.GaveUp = func(_ context.Context, g dibs.GivenUp) error {
						noted++
						if g.Key != "k" || g.Attempts != 5 || !errors.Is(g.Err, dibs.ErrHeld) {
							t.Errorf("noted %+v", g)
						}
						return nil
					}
				}
				ran, leased := false, false
				err := c.ComeBack(t.Context(), "k", o, func(ctx context.Context) error {
					ran = true
					_, leased = dibs.FromContext(ctx)
					return nil
				})
				if !errors.Is(err, test.want) || ran != test.ran || leased != test.leased || noted != test.noted {
					t.Errorf("err %v, ran %v, under a lease %v, noted %d", err, ran, leased, noted)
				}
			})
		})
	}
}

func TestComeBackMustChoose(t *testing.T) {
	c := newClient(t, newStore(t), nil)
	tests := map[string]*dibs.ComeBackOptions{
		"no options": nil,
		"Otherwise":  {},
		"GaveUp":     {Otherwise: dibs.GiveUp},
		"Attempts":   {Otherwise: dibs.Fail, Attempts: -1},
		"Backoff":    {Otherwise: dibs.Fail, Backoff: time.Second, MaxBackoff: time.Millisecond},
	}
	for field, o := range tests {
		err := c.ComeBack(t.Context(), "k", o, func(context.Context) error { t.Error("ran"); return nil })
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestComeBackEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, newStore(t), nil)
		l, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err = c.ComeBack(ctx, "k", &dibs.ComeBackOptions{Otherwise: dibs.RunAnyway, Backoff: time.Minute},
			func(context.Context) error { t.Error("ran"); return nil })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		_ = l.Release()
	})
}
