package jobs

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
)

// client returns one on a store in memory.
func client(t *testing.T) *dibs.Client {
	t.Helper()
	s, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	c, err := dibs.New(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestReach: a job that is made runnable as near to its turn as its line reaches has a
// seat when it comes, or it would be called again and again; and one farther away has
// none. Whoever goes for it comes after it.
func TestReach(t *testing.T) {
	c := client(t)
	keys := []dibs.Key{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	near := map[int]int{}
	random := rand.New(rand.NewPCG(1, 1))
	for range 5_000 {
		m, err := New(c, &Options{Seats: 1 + random.IntN(4), Permits: 1 + random.IntN(2), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		m.runs.add(time.Duration(random.IntN(200)) * time.Millisecond)
		m.paths.add(time.Duration(random.IntN(400)) * time.Millisecond)
		full := func() *lines {
			l := &lines{}
			l.init(m)
			return l
		}
		l := full()
		pool := []Pool{{}, {Workers: 1 + random.IntN(9)}}[random.IntN(2)]
		r := l.room(pool)
		for range r.seats {
			left := random.IntN(40)
			l.moves[keys[0]] = progress{gone: 5}
			r.seated = append(r.seated, &seat{key: keys[random.IntN(len(keys))], position: position{at: left + 5}, next: random.IntN(3) == 0, left: func() {}})
		}
		reach := l.reach(keys[0], r)
		near[min(reach, 3)]++
		for _, ahead := range []int{reach - 1, reach} {
			if ahead < 0 || ahead >= m.near(r) {
				continue
			}
			at := full()
			at.moves = l.moves
			gone := (*seat)(nil)
			there := at.room(pool)
			for _, s := range r.seated {
				again := *s
				again.room, again.left = there, func() { gone = s }
				there.seated = append(there.seated, &again)
			}
			sits, ok := at.sit(keys[0], there, aheadAt{ahead, 5 + ahead}, false)
			switch {
			case ok != (ahead < reach):
				t.Fatalf("reach is %d of %d, and with %d ahead it sits: %v", reach, m.near(r), ahead, ok)
			case !ok:
				continue
			case gone.next || ahead > 0 && at.left(gone) <= ahead && gone.key == keys[0]:
				t.Fatalf("one with %d ahead went for one with %d", at.left(gone), ahead)
			}
			sits.left()
		}
		m.Close()
	}
	if len(near) < 4 {
		t.Errorf("it reached %v", near)
	}
}

// TestStuckWhileTheLineStands: a job that has heard for a while that its key lies idle goes
// back to its queue, but not if others of the process have seen the line move: what it heard
// is old then.
func TestStuckWhileTheLineStands(t *testing.T) {
	c := client(t)
	m, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	key := c.Key("k")
	other, ok := m.lines.sit(key, m.lines.room(Pool{}), aheadAt{5, 5}, false)
	if !ok {
		t.Fatal("there is no seat")
	}
	for _, moved := range []bool{false, true} {
		if moved {
			m.lines.stands(other, 4)
		}
		a := &attempt{mutex: m, place: dibs.Place{Key: key}, room: m.lines.room(Pool{}), here: time.Now(), tries: 2, stuck: 3}
		seat, sits := a.sit(aheadAt{3, 3}, true)
		if sits != moved {
			t.Errorf("the line has moved: %v; it waits on: %v", moved, sits)
		}
		m.lines.leave(seat, false)
	}
	m.lines.leave(other, false)
}

// TestFreeSeatIsPassedOn: a seat that becomes free is told to a line that can use it, also
// when another one waits for it whose first is too far from its turn, or of another pool.
func TestFreeSeatIsPassedOn(t *testing.T) {
	for _, front := range []string{"nobody", "far", "of another pool"} {
		t.Run(front, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, c := inside(t, &Options{Seats: 8})
				small, large := Pool{Workers: 4}, Pool{Workers: 40}
				for _, key := range []string{"a", "b"} {
					lease, err := c.Acquire(t.Context(), key, nil)
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = lease.Release() }()
				}
				m.runs.add(time.Hour)
				m.lines.mu.Lock()
				r := m.lines.room(small)
				sits := &seat{room: r, next: true, left: func() {}}
				r.seated = append(r.seated, sits)
				m.lines.mu.Unlock()
				var tickets []string
				for range 3 {
					ticket, err := m.Enqueue(t.Context(), "a")
					if err != nil {
						t.Fatal(err)
					}
					tickets = append(tickets, ticket)
				}
				next, err := m.Enqueue(t.Context(), "b")
				if err != nil {
					t.Fatal(err)
				}
				putOff := func(key, ticket string, p Pool, at int, called func()) {
					a, err := m.attempt(t.Context(), Job{Kind: "t", ID: ticket, Key: key, Ticket: ticket, Pool: p,
						Wake: func(context.Context) (bool, error) { called(); return true, nil }})
					if err != nil {
						t.Fatal(err)
					}
					a.stood = time.Now()
					m.lines.add(a, at)
					synctest.Wait()
				}
				if front != "nobody" {
					putOff("a", tickets[2], small, 2, func() {})
				}
				if front == "of another pool" {
					putOff("a", tickets[1], large, 1, func() {})
				}
				called := make(chan time.Time, 1)
				putOff("b", next, small, 0, func() { called <- time.Now() })
				time.Sleep(time.Second)
				free := time.Now()
				m.lines.leave(sits, false)
				if late := (<-called).Sub(free); late < 0 || late > 100*time.Millisecond {
					t.Errorf("the job that is next was called %v after the seat was free", late)
				}
			})
		})
	}
}
