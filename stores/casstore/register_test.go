package casstore_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/casstore"
)

// distant returns a KV whose calls take a while, and counts writes that were refused.
func distant(m *casstore.Memory, refused *atomic.Int64) casstore.KV {
	const way = 5 * time.Millisecond
	return &kv{
		KV: m,
		get: func(ctx context.Context, name string) ([]byte, string, error) {
			time.Sleep(way)
			defer time.Sleep(way)
			return m.Get(ctx, name)
		},
		put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
			time.Sleep(way)
			defer time.Sleep(way)
			version, err := m.Put(ctx, name, value, version)
			if errors.Is(err, casstore.ErrConflict) {
				refused.Add(1)
			}
			return version, err
		},
	}
}

// runs has a clock tick until the test's context ends.
func runs(ctx context.Context, t *testing.T, c casstore.Clock, tick time.Duration) {
	for ctx.Err() == nil {
		time.Sleep(tick)
		_, err := c.Tick(context.Background(), tick)
		testkit.Check(t, err)
	}
}

func least(t *testing.T, c casstore.Clock) int64 {
	t.Helper()
	least, most, err := c.Now(t.Context())
	testkit.Must(t, err)
	if most < least {
		t.Errorf("the time is between %d and %d", least, most)
	}
	return least
}

// TestOneProcessMovesTheClock: of five that tick, the one that moved it last does it again. So the
// clock loses no more than a call with each tick, and no write is in vain. It is moved by another
// one when that process has ended.
func TestOneProcessMovesTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tick = 100 * time.Millisecond
		m, refused := &casstore.Memory{}, atomic.Int64{}
		var ends []context.CancelFunc
		reader := casstore.NewRegister(distant(m, &refused), &casstore.RegisterOptions{Tick: tick})
		least(t, reader)
		for i := range 5 {
			ctx, end := context.WithCancel(t.Context())
			ends = append(ends, end)
			time.Sleep(time.Duration(i) * 7 * time.Millisecond)
			go runs(ctx, t, casstore.NewRegister(distant(m, &refused), &casstore.RegisterOptions{Tick: tick}), tick)
		}
		time.Sleep(time.Second)
		for range 4 {
			before, began, in := least(t, reader), time.Now(), refused.Load()
			time.Sleep(10 * time.Second)
			moved, passed := time.Duration(least(t, reader)-before)*time.Microsecond, time.Since(began)
			if moved > passed || moved < passed*85/100 {
				t.Errorf("the clock moved by %v in %v", moved, passed)
			}
			if n := refused.Load() - in; n > 0 {
				t.Errorf("%d writes of the clock were refused", n)
			}
			ends[0]()
			ends = ends[1:]
			time.Sleep(time.Second)
		}
		ends[0]()
		time.Sleep(time.Second)
	})
}

// TestNewProcessesDoNotStopTheClock: a process that begins waits for the move that is planned,
// because its own would void the time that has been counted towards that one.
func TestNewProcessesDoNotStopTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tick = 100 * time.Millisecond
		m, refused := &casstore.Memory{}, atomic.Int64{}
		o := &casstore.RegisterOptions{Tick: tick}
		reader := casstore.NewRegister(distant(m, &refused), o)
		before, began := least(t, reader), time.Now()
		ctx, end := context.WithCancel(t.Context())
		go runs(ctx, t, casstore.NewRegister(distant(m, &refused), o), tick)
		time.Sleep(3 * tick)
		for range 200 {
			go least(t, casstore.NewRegister(distant(m, &refused), o))
			time.Sleep(tick / 4)
		}
		if moved, passed := time.Duration(least(t, reader)-before)*time.Microsecond, time.Since(began); moved < passed*8/10 {
			t.Errorf("the clock moved by %v in %v", moved, passed)
		}
		end()
		time.Sleep(time.Second)
	})
}

// TestClockOfALostStore: a process that knew the clock continues with the one that is there after all
// objects were lost.
func TestClockOfALostStore(t *testing.T) {
	m, wall := &casstore.Memory{}, time.Unix(2000, 0)
	o := &casstore.RegisterOptions{Wall: func() time.Time { return wall }}
	one, other := casstore.NewRegister(m, o), casstore.NewRegister(m, o)
	if n := least(t, one); n < wall.UnixMicro() {
		t.Errorf("the first time is %d, want that of the wall", n)
	}
	least(t, other)
	m.Wipe()
	wall = time.Unix(1000, 0)
	if n := least(t, one); n >= time.Unix(2000, 0).UnixMicro() {
		t.Errorf("the time is %d after the loss", n)
	}
	if a, b := least(t, one), least(t, other); b < a || b >= time.Unix(2000, 0).UnixMicro() {
		t.Errorf("the other process reads %d after %d", b, a)
	}
}

// TestUpperBoundDoesNotFall: of a lease that began just before the clock moves, no more than its TTL is
// left just after.
func TestUpperBoundDoesNotFall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tick = 100 * time.Millisecond
		r := casstore.NewRegister(&casstore.Memory{}, &casstore.RegisterOptions{Tick: tick})
		least(t, r)
		last := int64(0)
		for i := range 100 {
			time.Sleep(tick / 10)
			if i%10 == 9 {
				_, err := r.Tick(t.Context(), tick)
				testkit.Check(t, err)
			}
			_, most, err := r.Now(t.Context())
			testkit.Check(t, err)
			if most < last {
				t.Fatalf("the upper bound is %d after %d", most, last)
			}
			last = most
		}
	})
}
