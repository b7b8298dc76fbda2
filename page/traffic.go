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
	// maxNamespaces is how many namespaces are counted apart from each other.
	maxNamespaces = 1000
)

// Count is one kind of what Traffic counts.
type Count int

// What Traffic counts.
const (
	Requests Count = iota
	Replays
	Conflicts
	Refusals // of another request with the key, or of an unknown outcome
	StoreErrors
	counts // how many there are
)

// Traffic counts what happened in the last five minutes in this process, in all and in each namespace.
// The zero Traffic is ready for use, by several goroutines.
type Traffic struct {
	mu   sync.Mutex
	last int64 // under mu: the number of the slot that is counted in
	all  happened
	of   map[string]*happened // under mu: at most maxNamespaces
}

// happened is what happened, in slots.
type happened [counts][slots]int64

// Add counts what happened in a namespace.
func (t *Traffic) Add(namespace string, c Count, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(time.Now())
	t.all[c][t.last%slots] += n
	own := t.of[namespace]
	if own == nil && len(t.of) < maxNamespaces {
		if t.of == nil {
			t.of = map[string]*happened{}
		}
		own = new(happened)
		t.of[namespace] = own
	}
	if own != nil {
		own[c][t.last%slots] += n
	}
}

// turn empties the slots that are over.
func (t *Traffic) turn(now time.Time) {
	at := now.UnixNano() / int64(slot)
	if at <= t.last {
		return
	}
	t.all.empty(t.last, at)
	for namespace, own := range t.of {
		if own.empty(t.last, at); *own == (happened{}) {
			delete(t.of, namespace)
		}
	}
	t.last = at
}

// empty empties the slots after last, up to at.
func (h *happened) empty(last, at int64) {
	for n := max(last+1, at-slots+1); n <= at; n++ {
		for c := range h {
			h[c][n%slots] = 0
		}
	}
}

// read returns the slots of each count, the oldest first: of a namespace, or of all if it is nil. The
// errors of the store are those of all.
func (t *Traffic) read(now time.Time, namespace *string) (out happened) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(now)
	from := t.all
	if namespace != nil {
		from = happened{}
		if own := t.of[*namespace]; own != nil {
			from = *own
		}
		from[StoreErrors] = t.all[StoreErrors]
	}
	for c := range out {
		for i := range slots {
			out[c][i] = from[c][(t.last+1+int64(i))%slots]
		}
	}
	return out
}

// Request is for idempotency.Options.Observe.
func (t *Traffic) Request(_ context.Context, e idempotency.Event) {
	namespace := e.StoreKey().Namespace
	t.Add(namespace, Requests, 1)
	switch e.Kind {
	case idempotency.EventReplayed:
		t.Add(namespace, Replays, 1)
	case idempotency.EventConflict:
		t.Add(namespace, Conflicts, 1)
	case idempotency.EventMismatch, idempotency.EventUnknown:
		t.Add(namespace, Refusals, 1)
	}
}

// StoreCall is for dibs.Options.ObserveStore.
func (t *Traffic) StoreCall(c dibs.StoreCall) {
	if c.Err != nil && !errors.Is(c.Err, context.Canceled) {
		t.Add("", StoreErrors, 1)
	}
}
