//go:build nightly

package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
)

// farStore is a store at the other end of a network: it takes its time, gives no wake-ups of
// anything, loses a call or its answer now and then, and is away for two seconds in
// seven.
type farStore struct{ dibs.Store }

func (s farStore) way(steady bool) error {
	time.Sleep(rand.N(3 * time.Millisecond))
	if !steady && (rand.N(100) == 0 || time.Now().Unix()%7 >= 5) {
		return errDown
	}
	return nil
}

func (s farStore) call(steady bool, do func() error) error {
	if err := s.way(steady); err != nil {
		return err
	}
	return errors.Join(do(), s.way(steady))
}

func (s farStore) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	steady := len(claims) == 1 && claims[0].Mode == store.Reserve && claims[0].Grace == jobs.DefaultGrace // it is enqueued
	return s.call(steady, func() error { return s.Store.Claim(ctx, claims, answers) })
}

func (s farStore) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	return s.call(false, func() error { return s.Store.Renew(ctx, renewals, errs) })
}

func (s farStore) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	return s.call(false, func() error { return s.Store.Settle(ctx, settlements, errs) })
}

// TestStorm runs jobs of some keys in processes that are closed and begun anew, with a
// store that is away again and again and a queue that does not promote at times: they run
// in their order, once each, without long pauses, and nothing is left of them.
func TestStorm(t *testing.T) {
	for _, o := range []jobs.Options{
		{}, {Ahead: 1}, {Ahead: 30}, {Policy: jobs.Wait, Wait: time.Second},
	} {
		name := fmt.Sprintf("policy %d, %d ahead", o.Policy, o.Ahead)
		simulateAs(t, name, func(t *testing.T, f *fixture) { storm(t, f, o) })
	}
}

func storm(t *testing.T, f *fixture, o jobs.Options) {
	const keys, each, workers, pause = 8, 25, 6, 15 * time.Second
	q, l := newQueue(), newRunLog(t)
	q.forgets, q.pool.Workers = true, workers
	f.wg.Go(q.sweep)
	enqueuer := f.mutex(nil)
	want := q.mixed(t, enqueuer, keys, each)
	o.Logger = slog.New(slog.DiscardHandler)
	failed := map[string]bool{}
	last := map[string]time.Time{}
	work := func(_ context.Context, id string) error {
		key := keyOf(id)
		l.mu.Lock()
		fails := !failed[id] && rand.N(30) == 0
		failed[id] = fails
		if at, ok := last[key]; ok && time.Since(at) > pause {
			t.Errorf("%s lay idle for %v", key, time.Since(at))
		}
		last[key] = time.Now()
		l.mu.Unlock()
		if fails {
			return errors.New("an accident")
		}
		l.run(key, id, rand.N(50*time.Millisecond))
		return nil
	}
	life, end := context.WithCancel(t.Context())
	for range 3 {
		f.wg.Go(func() {
			for life.Err() == nil {
				c, err := dibs.New(farStore{f.store}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				m, err := jobs.New(c, &o)
				if err != nil {
					t.Error(err)
					return
				}
				process, stop := context.WithTimeout(life, time.Second+rand.N(3*time.Second))
				var pool sync.WaitGroup
				for range workers {
					pool.Go(func() { q.workFor(process, t.Context(), m, work) })
				}
				<-process.Done()
				m.Close()
				q.recheck()
				pool.Wait()
				stop()
				if s := m.Stats(); s.Waiting != 0 || s.Running != 0 {
					t.Errorf("left in a process that has ended: %+v", s)
				}
				_ = c.Close() // what could not be undone is counted
			}
		})
	}
	q.drain()
	end()
	f.wg.Wait()
	for key, ids := range want {
		l.inOrder(key, ids...)
	}
	time.Sleep(jobs.DefaultCrashGrace + dibs.DefaultTTL) // what was cut off has run out
	if _, err := f.store.Prune(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	f.empty()
}
