package idempotency

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// A localRun is a handler that runs in this process, as its duplicates see it.
type localRun struct {
	fingerprint dibs.Fingerprint
	lease       *dibs.Lease
	began       time.Time
	record      []byte // that it left; nil until then
}

// A waiter is a duplicate that waits for a run in this process. It receives a run once: without a
// record, or if another request has run under the key, the waiter may claim the key.
type waiter chan *localRun

// localRuns are the runs in this process and the duplicates that wait for them, so that a waiting
// duplicate costs the store nothing. The store stays the truth: a key that is not here may be held
// elsewhere.
type localRuns struct {
	mu      sync.Mutex
	running map[string]*localRun
	waiting map[string][]waiter
}

// find returns the key's run; nil if there is none. If waits says so, it makes the caller wait for
// the run; otherwise the waiter is nil.
func (l *localRuns) find(key string, waits func(*localRun) bool) (*localRun, waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	run := l.running[key]
	if run == nil || errors.Is(run.lease.Err(), dibs.ErrLost) {
		return nil, nil // another run may have answered since the lease was lost
	}
	if !waits(run) {
		return run, nil
	}
	w := make(waiter, 1)
	l.waiting[key] = append(l.waiting[key], w)
	return run, w
}

// quit ends the waiting of w. It reports false if w has received already.
func (l *localRuns) quit(key string, w waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting[key], w)
	if i < 0 {
		return false
	}
	l.setWaiting(key, slices.Delete(l.waiting[key], i, i+1))
	return true
}

// enter makes a run known.
func (l *localRuns) enter(key string, run *localRun) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running[key] = run
}

// leave ends a run. A record answers all waiters; without one the first of them claims the key.
func (l *localRuns) leave(key string, run *localRun, record []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running[key] == run {
		delete(l.running, key)
		run.record = record
		l.wake(key, run)
	}
}

// pass passes on what a waiter received and could not use.
func (l *localRuns) pass(key string, run *localRun) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running[key] == nil {
		l.wake(key, run)
	}
}

// wake answers all waiters with the run's record, or wakes the first if there is none.
func (l *localRuns) wake(key string, run *localRun) {
	n := len(l.waiting[key])
	if run.record == nil {
		n = min(n, 1)
	}
	for _, w := range l.waiting[key][:n] {
		w <- run
	}
	l.setWaiting(key, l.waiting[key][n:])
}

func (l *localRuns) setWaiting(key string, waiting []waiter) {
	if len(waiting) == 0 {
		delete(l.waiting, key)
		return
	}
	l.waiting[key] = waiting
}
