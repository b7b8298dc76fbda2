package idempotency

import (
	"context"
	"sync"
	"time"
)

// alarms end the tethers of visits that take too long. There are several lists
// of one kind, so that two requests rarely meet at the lock of one.
type alarms struct{ lists [8]alarmList }

func (a *alarms) init(after time.Duration, err error) {
	for i := range a.lists {
		a.lists[i].after, a.lists[i].err = after, err
	}
}

// of returns the list that the visit's alarm is on.
func (a *alarms) of(v *visit) *alarmList { return &a.lists[v.number%uint32(len(a.lists))] }

// alarmList is a list of alarms. Nearly all are set for the same time ahead, so that
// they ring in the order in which they were set: one timer and a list do, and
// setting one costs next to nothing.
type alarmList struct {
	after time.Duration
	err   error // with which a tether ends

	mu          sync.Mutex
	first, last *visit
	timer       *time.Timer
	armed       bool
}

// alarm is a visit's place in one of the lists.
type alarm struct {
	in         *alarmList // nil when not set
	at         time.Time
	prev, next *visit
}

// set makes the visit's alarm ring after the list's time. A visit has one alarm at
// a time.
func (a *alarmList) set(v *visit, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.insert(v, now.Add(a.after))
	if !a.armed {
		a.arm(a.after)
	}
}

// setFor makes the visit's alarm ring at that moment, which may be sooner.
func (a *alarmList) setFor(v *visit, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.insert(v, at)
	if a.first == v {
		a.arm(time.Until(at))
	}
}

func (a *alarmList) insert(v *visit, at time.Time) {
	prev, next := a.last, (*visit)(nil)
	for prev != nil && prev.alarm.at.After(at) {
		prev, next = prev.alarm.prev, prev
	}
	v.alarm = alarm{in: a, at: at, prev: prev, next: next}
	if prev == nil {
		a.first = v
	} else {
		prev.alarm.next = v
	}
	if next == nil {
		a.last = v
	} else {
		next.alarm.prev = v
	}
}

// clear takes the visit's alarm back, and reports false when it has rung.
func (a *alarmList) clear(v *visit) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if v.alarm.in == nil {
		return false
	}
	a.remove(v)
	return true
}

func (a *alarmList) remove(v *visit) {
	if v.alarm.prev == nil {
		a.first = v.alarm.next
	} else {
		v.alarm.prev.alarm.next = v.alarm.next
	}
	if v.alarm.next == nil {
		a.last = v.alarm.prev
	} else {
		v.alarm.next.alarm.prev = v.alarm.prev
	}
	v.alarm = alarm{}
}

// arm makes the timer fire. It is never stopped: one that finds nothing due
// looks for the next alarm.
func (a *alarmList) arm(d time.Duration) {
	a.armed = true
	if a.timer == nil {
		a.timer = time.AfterFunc(d, a.ring)
		return
	}
	a.timer.Reset(d)
}

// ring ends what is due.
func (a *alarmList) ring() {
	a.mu.Lock()
	now := time.Now()
	var due []context.CancelCauseFunc
	for a.first != nil && !a.first.alarm.at.After(now) {
		due = append(due, a.first.tether.end) // the visit may be over by then
		a.remove(a.first)
	}
	a.armed = false
	if a.first != nil {
		a.arm(a.first.alarm.at.Sub(now))
	}
	a.mu.Unlock()
	for _, end := range due {
		end(a.err)
	}
}
