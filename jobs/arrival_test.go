package jobs

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// putOff has a job with a ticket for the key "k" wait in its queue, with that position.
// called is told when it is made runnable.
func putOff(t *testing.T, m *Mutex, ticket string, at int, called func()) {
	t.Helper()
	a, err := m.attempt(t.Context(), Job{Kind: "test", ID: ticket, Key: "k", Ticket: ticket, Wake: func(context.Context) (bool, error) {
		called()
		return true, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	a.stood = time.Now()
	m.lines.add(a, at)
}

// ticketFor takes a place for a job of the key "k".
func ticketFor(t *testing.T, m *Mutex) string {
	t.Helper()
	ticket, err := m.Enqueue(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

// TestNextAtACrowdedLine: the job whose turn it is runs when it comes, though others are
// put off, its Limit is over, or no seat is left.
func TestNextAtACrowdedLine(t *testing.T) {
	for name, o := range map[string]*Options{
		"limit":   {Limit: time.Minute, Otherwise: dibs.Fail},
		"no seat": {Seats: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, _ := inside(t, o)
				m.runs.add(time.Hour) // so that one that is put off is far
				first := ticketFor(t, m)
				putOff(t, m, ticketFor(t, m), 1, func() {})
				m.lines.mu.Lock()
				r := m.lines.room(Pool{})
				r.seated = append(r.seated, &seat{room: r, next: true, left: func() {}})
				m.lines.mu.Unlock()
				if !m.lines.crowded(m.client.Key("k"), m.lines.room(Pool{})) {
					t.Fatal("the line is not crowded")
				}
				ran := false
				err := m.Run(t.Context(), Job{Kind: "test", ID: "first", Key: "k", Ticket: first, Due: time.Now().Add(-2 * time.Minute)},
					func(context.Context) error {
						ran = true
						return nil
					})
				if err != nil || !ran {
					t.Errorf("it ran: %v; %v", ran, err)
				}
			})
		})
	}
}

// TestCountBeginsAnew: a job that was put off with a position of a count that was
// forgotten is not behind all those that come later.
func TestCountBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, c := inside(t, &Options{Hold: time.Hour})
		holder, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		m.runs.add(time.Hour) // so that none is near before its turn
		key := holder.Key()
		m.lines.mu.Lock()
		m.lines.moves[key] = progress{gone: 500}
		m.lines.forget(key)
		m.lines.mu.Unlock()
		first := ticketFor(t, m)
		for i := range 2 * mostAround {
			putOff(t, m, ticketFor(t, m), m.lines.asking(key).heard(1+i).at, func() {})
		}
		var called atomic.Bool
		putOff(t, m, first, 500, func() { called.Store(true) })
		synctest.Wait()
		if err := holder.Release(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lullLong / 2)
		if !called.Load() {
			t.Error("the first one was not made runnable")
		}
	})
}

// TestCountsAreApart: how far the line of a key has moved is not changed by those of others.
func TestCountsAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, c := inside(t, &Options{})
		holder, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		m.runs.add(time.Hour) // so that it is not near before its turn, and stays in its line
		ticketFor(t, m)       // which comes first, and is never used
		putOff(t, m, ticketFor(t, m), 10, func() {})
		synctest.Wait()
		m.lines.mu.Lock()
		before := m.lines.gone(holder.Key())
		other := dibs.Key{Name: "other"}
		m.lines.moves[other] = progress{gone: before + 100}
		m.lines.forget(other)
		if after := m.lines.gone(holder.Key()); after != before || m.lines.floor != before+100 {
			t.Errorf("%d had gone, and %d by the count of another key, which was %d", before, after, m.lines.floor)
		}
		m.lines.mu.Unlock()
		if err := holder.Release(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFailedWithoutTicket: a job without a ticket whose place stands keeps that when it
// fails, also when another worker had it before.
func TestFailedWithoutTicket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, c := inside(t, &Options{})
		holder, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		j := Job{Kind: "test", ID: "1", Key: "k", Tries: 2, Wake: func(context.Context) (bool, error) { return true, nil }}
		a, err := m.attempt(t.Context(), j)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Prolong(t.Context(), a.place, time.Hour, nil); err != nil {
			t.Fatal(err)
		}
		failed := errors.New("it failed")
		done := make(chan error, 1)
		go func() { done <- m.Run(t.Context(), j, func(context.Context) error { return failed }) }()
		synctest.Wait()
		if err := holder.Release(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, failed) {
			t.Fatal(err)
		}
		if err := c.TryDo(t.Context(), "k", nil); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("another passed it: %v", err)
		}
	})
}

// TestNotAllAreCalled: those whose turn seems to be long over are not all made runnable at
// once, as few of them would find a seat.
func TestNotAllAreCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, c := inside(t, &Options{Seats: 2})
		holder, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		m.runs.add(5 * time.Millisecond)
		m.lines.mu.Lock()
		m.lines.moves[holder.Key()] = progress{gone: 100, at: time.Now()}
		m.lines.mu.Unlock()
		var called atomic.Int64
		for i := range 50 {
			putOff(t, m, ticketFor(t, m), i, func() { called.Add(1) })
		}
		time.Sleep(time.Millisecond)
		if n := called.Load(); n == 0 || n > 2*seatsFor {
			t.Errorf("%d were made runnable, for two seats", n)
		}
		if err := holder.Release(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCalledWhileOthersAreOnTheirWay: a job that is near to its turn is made runnable before
// that comes, though those that are on their way could take all seats.
func TestCalledWhileOthersAreOnTheirWay(t *testing.T) {
	for _, takes := range []time.Duration{time.Millisecond, time.Hour} {
		t.Run(takes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, c := inside(t, &Options{Seats: 8})
				holder, err := c.Acquire(t.Context(), "k", nil)
				if err != nil {
					t.Fatal(err)
				}
				m.runs.add(takes)
				m.lines.mu.Lock()
				m.lines.room(Pool{}).coming = 8
				m.lines.mu.Unlock()
				var called atomic.Bool
				putOff(t, m, ticketFor(t, m), 0, func() { called.Store(true) })
				time.Sleep(time.Second)
				if !called.Load() {
					t.Error("it was not made runnable")
				}
				if err := holder.Release(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}
