package page

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
)

const (
	// slots is how many points a chart has, and slot the time of each.
	slots = 30
	slot  = 10 * time.Second
)

// Count is one kind of what Traffic counts.
type Count int

// What Traffic counts.
const (
	Requests Count = iota
	Replays
	Conflicts
	StoreErrors
	counts // how many there are
)

// Traffic counts what happened in the last five minutes in this process. The zero Traffic is ready
// for use, by several goroutines.
type Traffic struct {
	mu   sync.Mutex
	last int64 // under mu: the number of the slot that is counted in
	n    [counts][slots]int64
}

// Add counts.
func (t *Traffic) Add(c Count, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(time.Now())
	t.n[c][t.last%slots] += n
}

// turn empties the slots that are over.
func (t *Traffic) turn(now time.Time) {
	at := now.UnixNano() / int64(slot)
	for n := max(t.last+1, at-slots+1); n <= at; n++ {
		for c := range t.n {
			t.n[c][n%slots] = 0
		}
	}
	t.last = max(t.last, at)
}

// read returns the slots of each count, the oldest first.
func (t *Traffic) read(now time.Time) (all [counts][slots]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(now)
	for c := range all {
		for i := range slots {
			all[c][i] = t.n[c][(t.last+1+int64(i))%slots]
		}
	}
	return all
}

// Request is for idempotency.Options.Observe.
func (t *Traffic) Request(_ context.Context, e idempotency.Event) {
	t.Add(Requests, 1)
	switch e.Kind {
	case idempotency.EventReplayed:
		t.Add(Replays, 1)
	case idempotency.EventConflict:
		t.Add(Conflicts, 1)
	}
}

// StoreCall is for dibs.Options.ObserveStore.
func (t *Traffic) StoreCall(c dibs.StoreCall) {
	if c.Err != nil && !errors.Is(c.Err, context.Canceled) {
		t.Add(StoreErrors, 1)
	}
}
