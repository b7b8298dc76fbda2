package idempotency

import (
	"sync"
	"time"
)

// alarms end the contexts of runs that take too long. All alarms of one kind
// are set for the same time ahead, so that they ring in the order in which they
// were set: one timer and a list do, and setting one costs next to nothing.
type alarms struct {
	after time.Duration
	err   error // with which a run's context ends

	mu          sync.Mutex
	first, last *run
	timer       *time.Timer
	armed       bool
}

// alarm is a run's place in one of the lists.
type alarm struct {
	in         *alarms // nil when not set
	at         time.Time
	prev, next *run
}

// set makes the run's alarm ring after the list's time. A run has one alarm at
// a time.
func (a *alarms) set(r *run, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.alarm = alarm{in: a, at: now.Add(a.after), prev: a.last}
	if a.last == nil {
		a.first = r
	} else {
		a.last.alarm.next = r
	}
	a.last = r
	if !a.armed {
		a.arm(a.after)
	}
}

// clear takes the run's alarm back, and reports false when it has rung.
func (a *alarms) clear(r *run) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.alarm.in == nil {
		return false
	}
	a.remove(r)
	return true
}

func (a *alarms) remove(r *run) {
	if r.alarm.prev == nil {
		a.first = r.alarm.next
	} else {
		r.alarm.prev.alarm.next = r.alarm.next
	}
	if r.alarm.next == nil {
		a.last = r.alarm.prev
	} else {
		r.alarm.next.alarm.prev = r.alarm.prev
	}
	r.alarm = alarm{}
}

// arm makes the timer fire. It is never stopped: one that finds nothing due
// looks for the next alarm.
func (a *alarms) arm(d time.Duration) {
	a.armed = true
	if a.timer == nil {
		a.timer = time.AfterFunc(d, a.ring)
		return
	}
	a.timer.Reset(d)
}

// ring ends what is due.
func (a *alarms) ring() {
	a.mu.Lock()
	now := time.Now()
	var due []*run
	for a.first != nil && !a.first.alarm.at.After(now) {
		due = append(due, a.first)
		a.remove(a.first)
	}
	a.armed = false
	if a.first != nil {
		a.arm(a.first.alarm.at.Sub(now))
	}
	a.mu.Unlock()
	for _, r := range due {
		r.end(a.err)
	}
}
