package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// held returns a lease on the key, as somebody else's job has it.
func held(t *testing.T, f *fixture, key string) *dibs.Lease {
	t.Helper()
	lease, err := f.client().Acquire(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func nothing(context.Context) error { return nil }

func TestCloseWakesWhatWasPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		m := f.mutex(&jobs.Options{Seats: -1})
		lease := held(t, f, "k")
		var mu sync.Mutex
		var woken []string
		noted := time.Now().Add(300 * time.Millisecond) // the queue is slow to note what was put off
		for _, id := range ids("", 5) {
			j := jobs.Job{Kind: "test", ID: id, Key: "k"}
			j.Wake = func(context.Context) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				if time.Now().Before(noted) {
					return false, nil
				}
				woken = append(woken, id)
				return true, nil
			}
			if _, ok := errors.AsType[*jobs.ComeBackError](m.Run(t.Context(), j, nothing)); !ok {
				t.Fatal("a job ran although its key was held")
			}
		}
		if s := m.Stats(); s.Away != 5 {
			t.Fatalf("%+v, want 5 away", s)
		}
		m.Close()
		if !slices.Equal(woken, ids("", 5)) {
			t.Errorf("Close made %v runnable, want all in their order", woken)
		}
		m.Close() // does nothing
		if err := lease.Release(); err != nil {
			t.Fatal(err)
		}
		second := f.mutex(nil)
		for _, id := range ids("", 5) {
			if err := second.Run(t.Context(), jobs.Job{Kind: "test", ID: id, Key: "k"}, nothing); err != nil {
				t.Error(err)
			}
		}
		f.empty()
	})
}

// TestCloseAsksAgain: what the queue did not make runnable in a moment is asked for again
// when it was asked for all others, as long as there is time. The log says what is left.
func TestCloseAsksAgain(t *testing.T) {
	const keys, each = 40, 3 // more than are asked for at once
	for _, away := range []time.Duration{2500 * time.Millisecond, time.Hour} {
		t.Run(away.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				var log strings.Builder
				m := f.mutex(&jobs.Options{Seats: -1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				var mu sync.Mutex
				woken := map[string]time.Duration{}
				var closed time.Time
				for k := range keys {
					key := fmt.Sprint("k", k)
					defer func(l *dibs.Lease) { _ = l.Release() }(held(t, f, key))
					for i := range each {
						id := fmt.Sprint(key, "/", i)
						_, ok := errors.AsType[*jobs.ComeBackError](m.Run(t.Context(), jobs.Job{Kind: "test", ID: id, Key: key, Wake: func(context.Context) (bool, error) {
							mu.Lock()
							defer mu.Unlock()
							since := time.Since(closed)
							if i == 0 && since < away {
								return false, errDown
							}
							woken[id] = since
							return true, nil
						}}, nothing))
						if !ok {
							t.Fatal("a job ran although its key was held")
						}
					}
				}
				closed = time.Now()
				m.Close()
				took := time.Since(closed)
				mu.Lock()
				defer mu.Unlock()
				left := 0
				for k := range keys {
					for i := range each {
						id := fmt.Sprint("k", k, "/", i)
						switch at, ok := woken[id]; {
						case !ok:
							left++
						case i > 0 && at > 4*time.Second:
							t.Errorf("%s was made runnable after %v", id, at)
						}
					}
				}
				says := strings.Contains(log.String(), fmt.Sprintf("left=%d error=%q", keys, errDown.Error()))
				if forever := away > time.Minute; forever && (left != keys || !says) || !forever && (left > 0 || log.Len() > 0) || took > 5*time.Second {
					t.Errorf("%d were left after %v; it said %q", left, took, log.String())
				}
			})
		})
	}
}

func TestCloseDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var log strings.Builder
		m := f.mutex(&jobs.Options{Seats: -1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		lease := held(t, f, "k")
		j := jobs.Job{Kind: "test", ID: "1", Key: "k", Wake: func(ctx context.Context) (bool, error) {
			<-ctx.Done() // the queue hangs
			return false, ctx.Err()
		}}
		if _, ok := errors.AsType[*jobs.ComeBackError](m.Run(t.Context(), j, nothing)); !ok {
			t.Fatal("a job ran although its key was held")
		}
		start := time.Now()
		m.Close()
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("Close took %v", took)
		}
		if !strings.Contains(log.String(), `left=1 error="context deadline exceeded"`) {
			t.Errorf("the log says %q", log.String())
		}
		if err := lease.Release(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestJobThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		m := f.mutex(&jobs.Options{Seats: -1})
		lease := held(t, f, "k")
		gone := jobs.Job{Kind: "test", ID: "1", Key: "k", Wake: func(context.Context) (bool, error) { return false, jobs.ErrGone }}
		if _, ok := errors.AsType[*jobs.ComeBackError](m.Run(t.Context(), gone, nothing)); !ok {
			t.Fatal("a job ran although its key was held")
		}
		if err := lease.Release(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(time.Second)
		start := time.Now()
		if err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "2", Key: "k", Stays: true}, nothing); err != nil || time.Since(start) > 0 {
			t.Errorf("the place of a job that is gone was in the way for %v: %v", time.Since(start), err)
		}
		f.empty()
	})
}

func TestCancelledWhileItWaits(t *testing.T) {
	for _, last := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			m := f.mutex(nil)
			lease := held(t, f, "k")
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- m.Run(ctx, jobs.Job{Kind: "test", ID: "1", Key: "k", Last: func(error) bool { return last }}, nothing)
			}()
			synctest.Wait()
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
			if err := lease.Release(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			busy, err := f.client().Held(t.Context(), "k")
			if err != nil || busy == last {
				t.Errorf("last %v: a place stands %v, %v", last, busy, err)
			}
		})
	}
}

func TestPatience(t *testing.T) {
	for _, policy := range []jobs.Policy{jobs.ComeBack, jobs.Wait} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			m := f.mutex(&jobs.Options{Policy: policy, Wait: time.Hour})
			lease := held(t, f, "k")
			start := time.Now()
			err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k", Patience: 2500 * time.Millisecond}, nothing)
			if _, ok := errors.AsType[*jobs.ComeBackError](err); !ok || time.Since(start) != 2500*time.Millisecond {
				t.Errorf("policy %d: %v after %v, want to come back after 2.5 s", policy, err, time.Since(start))
			}
			if err := lease.Release(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		m := f.mutex(&jobs.Options{Policy: jobs.Wait, Wait: 10 * time.Millisecond})
		lease := held(t, f, "k")
		start := time.Now()
		err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k"}, nothing)
		if _, ok := errors.AsType[*jobs.ComeBackError](err); !ok || time.Since(start) != 10*time.Millisecond {
			t.Errorf("%v after %v, want to come back after 10 ms", err, time.Since(start))
		}
		if err := lease.Release(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestWithoutWake is a queue that only redelivers.
func TestWithoutWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		q, l := newQueue(), newLedger(t)
		q.blind = true
		m := f.mutex(&jobs.Options{Seats: 1})
		for _, id := range ids("k/", 50) {
			q.enqueue(t, m, "k", id)
		}
		start := time.Now()
		f.workers(q, m, 2, func(_ context.Context, id string) error {
			d := time.Millisecond
			if id == "k/0" {
				d = 1300 * time.Millisecond
			}
			l.run("k", id, d)
			return nil
		})
		q.drain()
		f.wg.Wait()
		l.inOrder("k", ids("k/", 50)...)
		if took := time.Since(start); took > 6*time.Second {
			t.Errorf("50 jobs of which one is long took %v", took)
		}
		f.empty()
	})
}
