package jobs

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// mute is a store that tells nobody that its turn has come.
type mute struct{ dibs.Store }

// TestMisplaced puts jobs off of which one is nearer to its turn than is known: its key
// does not lie idle for long, though those behind it are called before and it is not told.
func TestMisplaced(t *testing.T) {
	const jobs, misplaced = 200, 20
	const takes, path = 5 * time.Millisecond, 30 * time.Millisecond
	for by, most := range map[int]time.Duration{
		30:   100 * time.Millisecond,
		jobs: 3 * lullLong, // it is not among those in front
	} {
		t.Run(fmt.Sprint(by), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, c := insideOf(t, &Options{Seats: 12, Recovery: time.Hour, Hold: time.Hour}, func(s dibs.Store) dibs.Store { return mute{s} })
				holder, err := c.Acquire(t.Context(), "k", nil)
				if err != nil {
					t.Fatal(err)
				}
				for range 20 {
					m.runs.add(takes)
					m.paths.add(path)
				}
				var tickets []string
				for range jobs {
					tickets = append(tickets, ticketFor(t, m))
				}
				ended, idle, done := time.Now(), time.Duration(0), make(chan int, jobs)
				misplace := func() {
					l := &m.lines
					l.mu.Lock()
					defer l.mu.Unlock()
					of := l.byKey[holder.Key()]
					i := slices.IndexFunc(of.away, func(w *away) bool { return w.job.Ticket == tickets[misplaced] })
					of.away[i].at += by
					of.sort()
				}
				var deliver func(i int)
				deliver = func(i int) {
					time.Sleep(path)
					j := Job{Kind: "test", ID: fmt.Sprint(i), Key: "k", Ticket: tickets[i], Wake: func(context.Context) (bool, error) {
						go deliver(i)
						return true, nil
					}}
					_ = m.Run(t.Context(), j, func(context.Context) error { // or it is put off again
						if idle = max(idle, time.Since(ended)); i == 2 {
							misplace()
						}
						time.Sleep(takes)
						ended = time.Now()
						done <- i
						return nil
					})
				}
				for i := range jobs {
					putOff(t, m, tickets[i], 1+i, func() { go deliver(i) })
				}
				synctest.Wait()
				if err := holder.Release(); err != nil {
					t.Fatal(err)
				}
				for i := range jobs {
					if next := <-done; next != i {
						t.Fatalf("job %d ran at place %d", next, i)
					}
				}
				if idle > most {
					t.Errorf("the key lay idle for %v, which is more than %v", idle, most)
				}
				t.Logf("the key lay idle for %v", idle)
			})
		})
	}
}

// counted is a store that counts claims.
type counted struct {
	dibs.Store
	claims atomic.Int64
}

func (s *counted) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	s.claims.Add(int64(len(claims)))
	return s.Store.Claim(ctx, claims, answers)
}

// TestFewLooks: a long line is not looked at again and again, as long as its key is held,
// and as long as that lies idle for a place that nobody redeems.
func TestFewLooks(t *testing.T) {
	const away, lasts = 1000, 10 * time.Minute
	for _, held := range []bool{true, false} {
		t.Run(fmt.Sprintf("held %v", held), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &counted{}
				m, c := insideOf(t, &Options{Hold: time.Hour}, func(memory dibs.Store) dibs.Store {
					s.Store = memory
					return s
				})
				m.runs.add(time.Hour)
				holder, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{TTL: time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				ticketFor(t, m) // which comes first, and is never used
				for i := range away {
					putOff(t, m, ticketFor(t, m), 1+i, func() {})
				}
				if !held {
					if err := holder.Release(); err != nil {
						t.Fatal(err)
					}
				}
				before := s.claims.Load()
				time.Sleep(lasts)
				// The first one is looked at twice a second, and the others when the lull has
				// lasted for twice as long.
				most := 3 * int(lasts/time.Second)
				if !held {
					most += 10 * away
				}
				if n := int(s.claims.Load() - before); n > most {
					t.Errorf("%d looks in %v, at most %d", n, lasts, most)
				}
				if err := holder.Release(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestStirredOnce: the only job behind a place that nobody redeems is made runnable once,
// for the Hold of that place to begin, and not again and again.
func TestStirredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := inside(t, &Options{Recovery: 12 * time.Hour, Hold: time.Hour})
		m.runs.add(time.Hour)
		ticketFor(t, m) // which comes first, and is never used
		ticket := ticketFor(t, m)
		called := 0
		ran := make(chan time.Time, 1)
		var deliver func()
		deliver = func() {
			_ = m.Run(t.Context(), Job{Kind: "test", ID: "1", Key: "k", Ticket: ticket, Wake: func(context.Context) (bool, error) {
				called++
				go deliver()
				return true, nil
			}}, func(context.Context) error {
				ran <- time.Now()
				return nil
			})
		}
		begun := time.Now()
		putOff(t, m, ticket, 1, func() {
			called++
			go deliver()
		})
		if took := (<-ran).Sub(begun); took > time.Hour+time.Minute {
			t.Errorf("it ran after %v; the Hold is an hour", took)
		}
		if called > 2 {
			t.Errorf("it was made runnable %d times, and not when it waits in vain and when its turn has come", called)
		}
	})
}
