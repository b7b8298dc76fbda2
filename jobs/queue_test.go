package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// queue is a job queue as others are: it gives each job to a free worker, first
// come, first served, takes it back when it comes back or failed, and gives it out
// again when it is due.
type queue struct {
	mu      sync.Mutex
	changed chan struct{} // closed when something changes
	jobs    []*entry      // not done, in the order in which they are given out
	done    []*entry
	stopped bool
	forgets bool // it does not promote when a job begins at times, as after a crash

	pool jobs.Pool // of its jobs

	has, most map[string]int // how many workers have a job of a key, and had at most
}

type entry struct {
	job      jobs.Job
	due      time.Time
	running  bool
	parked   bool
	fetched  int
	since    time.Time
	failures int
	attempts int // how often it may fail; 0: forever
	dropped  bool
	err      error
}

func newQueue() *queue {
	return &queue{changed: make(chan struct{}), has: map[string]int{}, most: map[string]int{}}
}

// change wakes all workers; the caller has the lock.
func (q *queue) change() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// enqueue adds a job with a ticket of m.
func (q *queue) enqueue(t *testing.T, m *jobs.Mutex, key, id string) *entry {
	t.Helper()
	tickets, err := m.EnqueueMany(t.Context(), []jobs.Job{{Kind: "test", ID: id, Key: key}})
	testkit.Must(t, err)
	e := &entry{job: jobs.Job{Kind: "test", ID: id, Key: key, Ticket: tickets[0].Text}, due: time.Now()}
	if tickets[0].Parked {
		e.parked, e.due = true, time.Now().Add(time.Hour)
	}
	return q.put(e)
}

// backlog adds n jobs of the key "k".
func (q *queue) backlog(t *testing.T, m *jobs.Mutex, n int) {
	for _, id := range ids("k/", n) {
		q.enqueue(t, m, "k", id)
	}
}

// mixed adds jobs of several keys in turn, and returns their IDs by key.
func (q *queue) mixed(t *testing.T, m *jobs.Mutex, keys, each int) map[string][]string {
	all := map[string][]string{}
	for i := range each {
		for k := range keys {
			key := fmt.Sprint("k", k)
			id := fmt.Sprint(key, "/", i)
			q.enqueue(t, m, key, id)
			all[key] = append(all[key], id)
		}
	}
	return all
}

func (q *queue) add(j jobs.Job) *entry { return q.put(&entry{job: j, due: time.Now()}) }

func (q *queue) put(e *entry) *entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	e.since = time.Now()
	q.jobs = append(q.jobs, e)
	q.change()
	return e
}

// promote makes those of the first jobs of the key runnable that are parked.
func (q *queue) promote(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := 0
	for _, e := range q.jobs {
		if e.job.Key != key {
			continue
		}
		if first++; first > jobs.DefaultAhead {
			return
		}
		if e.parked && !e.running {
			e.parked, e.due = false, time.Now()
			q.change()
		}
	}
}

// sweep promotes the jobs of all keys each second until the queue is stopped.
func (q *queue) sweep() {
	for {
		time.Sleep(time.Second)
		q.mu.Lock()
		keys := map[string]bool{}
		for _, e := range q.jobs {
			keys[e.job.Key] = true
		}
		stopped := q.stopped
		q.mu.Unlock()
		if stopped {
			return
		}
		for key := range keys {
			q.promote(key)
		}
	}
}

// recheck lets all workers check whether they should go on.
func (q *queue) recheck() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.change()
}

// take returns the next job that is due, or nil once the queue is stopped or ctx ended.
func (q *queue) take(ctx context.Context) *entry {
	for {
		q.mu.Lock()
		if q.stopped || ctx.Err() != nil {
			q.mu.Unlock()
			return nil
		}
		wait := time.Duration(-1)
		for _, e := range q.jobs {
			if e.running {
				continue
			}
			left := time.Until(e.due)
			if left <= 0 {
				e.running, e.parked = true, false
				e.fetched++
				q.has[e.job.Key]++
				q.most[e.job.Key] = max(q.most[e.job.Key], q.has[e.job.Key])
				q.mu.Unlock()
				return e
			}
			if wait < 0 || left < wait {
				wait = left
			}
		}
		changed := q.changed
		q.mu.Unlock()
		if wait < 0 {
			<-changed
			continue
		}
		select {
		case <-changed:
		case <-time.After(wait):
		}
	}
}

// workFor runs jobs until the queue is stopped or life ends.
func (q *queue) workFor(life, ctx context.Context, m *jobs.Mutex, fn func(ctx context.Context, id string) error) {
	for e := q.take(life); e != nil; e = q.take(life) {
		j := e.job
		j.Pool, j.Tries = q.pool, e.fetched
		if j.Due.IsZero() {
			j.Due = e.since
		}
		last := e.attempts > 0 && e.failures+1 >= e.attempts
		j.Final = func(error) bool { return last }
		j.RetryIn = func(error) time.Duration { return time.Second }
		j.Promoted = true
		err := m.Run(ctx, j, func(ctx context.Context) error {
			if !q.forgets || rand.N(5) > 0 {
				q.promote(j.Key)
			}
			return fn(ctx, j.ID)
		})
		q.finish(e, err, last)
	}
}

// finish takes a job back.
func (q *queue) finish(e *entry, err error, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e.running, e.err = false, err
	q.has[e.job.Key]--
	back, putOff := errors.AsType[*jobs.RequeueError](err)
	switch {
	case putOff:
		e.parked, e.due = back.Parked, time.Now().Add(back.After)
	case err != nil && !last:
		e.failures++
		e.due = time.Now().Add(time.Second)
	default:
		e.dropped = err != nil
		q.jobs = slices.DeleteFunc(q.jobs, func(f *entry) bool { return f == e })
		q.done = append(q.done, e)
	}
	q.change()
}

// drain waits until all jobs are done and stops the workers.
func (q *queue) drain() {
	for {
		q.mu.Lock()
		if len(q.jobs) == 0 {
			q.stopped = true
			q.change()
			q.mu.Unlock()
			return
		}
		changed := q.changed
		q.mu.Unlock()
		<-changed
	}
}

// fixture is a store with clients and mutexes, each as in a process of its own.
type fixture struct {
	t     *testing.T
	store *memstore.Store
	wg    sync.WaitGroup
}

// simulate runs fn in simulated time.
func simulate(t *testing.T, fn func(t *testing.T, f *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New(nil)
		testkit.Must(t, err)
		t.Cleanup(func() { testkit.Must(t, s.Close()) })
		fn(t, &fixture{t: t, store: s})
	})
}

func simulateAs(t *testing.T, name any, fn func(t *testing.T, f *fixture)) {
	t.Run(fmt.Sprint(name), func(t *testing.T) { simulate(t, fn) })
}

func nothing(context.Context) error { return nil }

func (f *fixture) client() *dibs.Client { return f.clientOf(f.store) }

// clientOf returns a client of f.store, or of a faulty store in front of it.
func (f *fixture) clientOf(s dibs.Store) *dibs.Client {
	f.t.Helper()
	c, err := dibs.New(s, &dibs.Options{TTL: time.Second})
	testkit.Must(f.t, err)
	f.t.Cleanup(func() {
		if err := c.Close(); s == f.store {
			testkit.Must(f.t, err)
		}
	})
	return c
}

func (f *fixture) mutex(o *jobs.Options) *jobs.Mutex { return f.mutexOf(f.store, o) }

func (f *fixture) mutexOf(s dibs.Store, o *jobs.Options) *jobs.Mutex {
	f.t.Helper()
	var options jobs.Options
	if o != nil {
		options = *o
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	m, err := jobs.New(f.clientOf(s), &options)
	testkit.Must(f.t, err)
	f.t.Cleanup(m.Close)
	return m
}

// ticket takes the place of a job.
func (f *fixture) ticket(m *jobs.Mutex, key string) string {
	f.t.Helper()
	ticket, err := m.Enqueue(f.t.Context(), jobs.Job{Key: key})
	testkit.Must(f.t, err)
	return ticket
}

// held returns a lease on the key, as another job has it.
func (f *fixture) held(key string) *dibs.Lease {
	f.t.Helper()
	lease, err := f.client().Acquire(f.t.Context(), key, nil)
	testkit.Must(f.t, err)
	return lease
}

// workers lets n workers of a process run the queue's jobs.
func (f *fixture) workers(q *queue, m *jobs.Mutex, n int, fn func(ctx context.Context, id string) error) {
	if q.pool.Workers == 0 {
		q.pool.Workers = n
	}
	f.wg.Go(q.sweep)
	for range n {
		f.wg.Go(func() { q.workFor(f.t.Context(), f.t.Context(), m, fn) })
	}
}

// run lets n workers run the queue's jobs until all are done.
func (f *fixture) run(q *queue, m *jobs.Mutex, n int, fn func(ctx context.Context, id string) error) {
	f.workers(q, m, n, fn)
	f.drain(q)
}

// drain waits until all jobs are done and the workers have ended.
func (f *fixture) drain(q *queue) {
	q.drain()
	f.wg.Wait()
}

// empty fails the test if anything is left of the keys.
func (f *fixture) empty() {
	f.t.Helper()
	synctest.Wait()
	for e, err := range f.store.List(f.t.Context(), store.Query{}) {
		testkit.Must(f.t, err)
		if e.Record == nil || e.Waiters+e.Reserved > 0 || len(e.Runs) > 0 {
			f.t.Errorf("left behind: %+v", e)
		}
	}
}

// runLog notes what runs, by key, and fails the test when two of one do at once.
type runLog struct {
	t       *testing.T
	mu      sync.Mutex
	running map[string]int
	most    int
	ran     map[string][]string
	at      map[string]time.Time // of an ID's last end
}

func newRunLog(t *testing.T) *runLog {
	return &runLog{t: t, most: 1, running: map[string]int{}, ran: map[string][]string{}, at: map[string]time.Time{}}
}

// run is what the job with that ID of the key does.
func (l *runLog) run(key, id string, d time.Duration) {
	l.mu.Lock()
	l.running[key]++
	if l.running[key] > l.most {
		l.t.Errorf("%d jobs of %s at once", l.running[key], key)
	}
	l.mu.Unlock()
	time.Sleep(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running[key]--
	l.ran[key] = append(l.ran[key], id)
	l.at[id] = time.Now()
}

// work is what workers do whose jobs take d.
func (l *runLog) work(d time.Duration) func(context.Context, string) error {
	return func(_ context.Context, id string) error { l.run(keyOf(id), id, d); return nil }
}

// inOrder fails the test unless the key's jobs were these, in this order.
func (l *runLog) inOrder(key string, want ...string) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.ran[key], want) {
		l.t.Errorf("of %s ran %v, want %v", key, l.ran[key], want)
	}
}

func ids(prefix string, n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprint(prefix, i))
	}
	return list
}
