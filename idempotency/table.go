package idempotency

import (
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// A flight is a visit whose handler runs, as its duplicates in this process see it.
type flight struct {
	fingerprint dibs.Fingerprint
	lease       *dibs.Lease
	since       time.Time
	running     bool
	// record is set when the answer was sent but the store does not have it yet.
	record  []byte
	waiters []*waiter
}

// A waiter is a duplicate that waits for a run in this process.
type waiter struct {
	// woken gets one message: the record, or nil when it is this waiter's turn
	// to claim the key.
	woken chan []byte
}

// table knows the runs of this process by key, so that duplicates neither ask
// the store nor miss the answer. The store stays the truth: a key that is not
// here may be held elsewhere.
type table struct {
	mu      sync.Mutex
	flights map[string]*flight
}

// tables are several, so that two requests rarely meet at the lock of one.
type tables struct {
	seed  maphash.Seed
	parts [16]table
}

// of returns the table in which the key is.
func (t *tables) of(name string) *table {
	return &t.parts[maphash.String(t.seed, name)%uint64(len(t.parts))]
}

// sight is what a duplicate finds.
type sight uint8

const (
	sawNothing sight = iota // ask the store
	sawMismatch
	sawRunning
	sawAnswer
	sawPlace // it waits
)

// look returns what there is of the key. With join, who finds it running joins
// its waiters.
func (t *table) look(name string, f dibs.Fingerprint, join bool) (s sight, w *waiter, since time.Time, record []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fl := t.flights[name]
	switch {
	case fl == nil || !fl.running:
		return sawNothing, nil, since, nil
	case fl.record == nil && errors.Is(fl.lease.Err(), dibs.ErrLost):
		// However long its handler goes on, another one may have answered.
		return sawNothing, nil, since, nil
	case fl.fingerprint.Differs(f):
		return sawMismatch, nil, since, nil
	case fl.record != nil:
		return sawAnswer, nil, since, fl.record
	case !join:
		return sawRunning, nil, fl.since, nil
	}
	w = &waiter{woken: make(chan []byte, 1)}
	fl.waiters = append(fl.waiters, w)
	return sawPlace, w, fl.since, nil
}

// enter makes a run known. It inherits those who waited for one before it.
func (t *table) enter(name string, fl *flight) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fl.running = true
	if old := t.flights[name]; old != nil {
		fl.waiters, old.waiters = old.waiters, nil
	}
	if t.flights == nil {
		t.flights = make(map[string]*flight)
	}
	t.flights[name] = fl
}

// waited reports whether anybody waits for the run.
func (t *table) waited(fl *flight) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(fl.waiters) > 0
}

// answered makes the record known before the store has it; whoever waits gets
// it.
func (t *table) answered(name string, fl *flight, record []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flights[name] != fl {
		return
	}
	fl.record = record
	fl.wakeAll(record)
}

// leave ends a run. record, unless nil, answers those who wait; otherwise the
// first of them takes its turn.
func (t *table) leave(name string, fl *flight, record []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flights[name] != fl {
		return
	}
	fl.running, fl.record = false, nil
	t.pass(name, fl, record)
}

// hand passes a turn on that was not used. record as with leave.
func (t *table) hand(name string, record []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fl := t.flights[name]; fl != nil && !fl.running {
		t.pass(name, fl, record)
	}
}

func (t *table) pass(name string, fl *flight, record []byte) {
	if record != nil {
		fl.wakeAll(record)
	}
	if len(fl.waiters) > 0 {
		fl.waiters[0].woken <- nil
		fl.waiters = fl.waiters[1:]
	}
	if len(fl.waiters) == 0 {
		delete(t.flights, name)
	}
}

// giveUp takes a waiter off. It reports false when it has been woken already.
func (t *table) giveUp(name string, w *waiter) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	fl := t.flights[name]
	if fl == nil {
		return false
	}
	for i, other := range fl.waiters {
		if other == w {
			fl.waiters = append(fl.waiters[:i:i], fl.waiters[i+1:]...)
			return true
		}
	}
	return false
}

func (fl *flight) wakeAll(record []byte) {
	for _, w := range fl.waiters {
		w.woken <- record
	}
	fl.waiters = nil
}
