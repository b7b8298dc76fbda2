package jobs_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/memstore"
)

// TestStandsOnce: that a job is there is noted when a worker has it for the first time,
// and not each time that it comes back soon after: it keeps others from the key.
func TestStandsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		const many = 40
		s, m := f.counted(&jobs.Options{Seats: 2})
		q, l := newQueue(), newLedger(t)
		elsewhere := f.mutex(nil)
		for i := range many {
			q.enqueue(t, elsewhere, "k", fmt.Sprint("k/", i))
		}
		f.workers(q, m, 6, func(_ context.Context, id string) error {
			l.run("k", id, 100*time.Millisecond)
			return nil
		})
		q.drain()
		f.wg.Wait()
		l.inOrder("k", ids("k/", many)...)
		if s := m.Stats(); s.PutOff < many/5 {
			t.Errorf("%d were put off; it is not about much", s.PutOff)
		}
		for _, n := range s.prolonged {
			if n > 1 {
				t.Errorf("a place was prolonged %d times", n)
			}
		}
		m.Close()
		f.empty()
	})
}

// TestCrowdedLine: a job that comes to a key for which many wait already is one call of
// the store, which notes that it is there.
func TestCrowdedLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		const many = 60
		s, m := f.counted(&jobs.Options{Seats: 2})
		q, l := newQueue(), newLedger(t)
		elsewhere := f.mutex(nil)
		q.enqueue(t, elsewhere, "k", "k/0")
		f.workers(q, m, 4, func(_ context.Context, id string) error {
			l.run("k", id, time.Second)
			return nil
		})
		synctest.Wait() // it runs, and the key is not idle when the others come
		var late []dibs.Token
		for i := 1; i < many; i++ {
			e := q.enqueue(t, elsewhere, "k", fmt.Sprint("k/", i))
			if i >= many/2 {
				late = append(late, placeOf(t, e.job.Ticket).Token)
			}
		}
		synctest.Wait()
		s.mu.Lock()
		for i, token := range late {
			if s.prolonged[token] != 1 || s.redeemed[token] != 0 {
				t.Errorf("job %d: %d notes that it is there, and it was asked %d times whether it has the key", many/2+i, s.prolonged[token], s.redeemed[token])
			}
		}
		s.mu.Unlock()
		q.drain()
		f.wg.Wait()
		l.inOrder("k", ids("k/", many)...)
		m.Close()
		f.empty()
	})
}

// TestStandsAgain: of a job that waits in its worker for long it is noted now and then
// that it is there.
func TestStandsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		s, m := f.counted(&jobs.Options{Policy: jobs.Wait, Recovery: 20 * time.Second})
		q, l := newQueue(), newLedger(t)
		for i := range 2 {
			q.enqueue(t, m, "k", fmt.Sprint("k/", i))
		}
		f.workers(q, m, 2, func(_ context.Context, id string) error {
			l.run("k", id, 26*time.Second)
			return nil
		})
		q.drain()
		f.wg.Wait()
		l.inOrder("k", ids("k/", 2)...)
		most := 0
		for _, n := range s.prolonged {
			most = max(most, n)
		}
		if most < 4 || most > 7 { // each five seconds, as far as it is looked at
			t.Errorf("the place of the one that waited was prolonged %d times", most)
		}
		m.Close()
		f.empty()
	})
}

// placesStore counts how often places are asked for, and claimed from.
type placesStore struct {
	*memstore.Store
	mu                  sync.Mutex
	prolonged, redeemed map[dibs.Token]int
}

// counted returns a Mutex over the fixture's store that counts so.
func (f *fixture) counted(o *jobs.Options) (*placesStore, *jobs.Mutex) {
	f.t.Helper()
	s := &placesStore{Store: f.store, prolonged: map[dibs.Token]int{}, redeemed: map[dibs.Token]int{}}
	c, err := dibs.New(s, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = c.Close() })
	o.Logger = slog.New(slog.DiscardHandler)
	m, err := jobs.New(c, o)
	if err != nil {
		f.t.Fatal(err)
	}
	return s, m
}

func (s *placesStore) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	s.mu.Lock()
	for _, c := range claims {
		switch {
		case c.Mode == dibs.Reserve:
			s.prolonged[c.Token]++
		case c.Mode != dibs.Look && !c.Redeems.IsZero():
			s.redeemed[c.Redeems]++
		}
	}
	s.mu.Unlock()
	return s.Store.Claim(ctx, claims, answers)
}
