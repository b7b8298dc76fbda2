package proxy

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
)

// outagePause is the shortest time between two lines that say that the store fails.
const outagePause = time.Minute

// outage logs that the store fails, and that it answers again.
type outage struct {
	log *slog.Logger

	mu       sync.Mutex
	failed   time.Time // under mu: of the last failure
	logged   time.Time // under mu: of the last line about a failure
	requests int       // under mu: that failed since that line
	open     bool      // under mu: the store has not answered since that line
}

// observe notes what a request says about the store.
func (o *outage) observe(e idempotency.Event) {
	switch {
	case storeFailed(e):
		o.fail(1, e.Err)
	case e.Claiming > 0 && e.Outcome != idempotency.OutcomeCanceled:
		o.answered(e.Start)
	}
}

// storeFailed reports whether the store did not claim or settle the key.
func storeFailed(e idempotency.Event) bool {
	switch e.Outcome {
	case idempotency.OutcomeUnavailable, idempotency.OutcomeBypassed:
		return !e.Start.IsZero()
	case idempotency.OutcomeLost:
		return false // an operator may have released the key
	case idempotency.OutcomeOverloaded:
		return false // the error names a bound
	}
	return e.Settling > 0 && e.Err != nil && !errors.Is(e.Err, dibs.ErrTooLarge)
}

// fail notes that the store failed these requests. It logs that at most once in outagePause.
func (o *outage) fail(requests int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = time.Now()
	o.requests += requests
	if !o.logged.IsZero() && o.failed.Sub(o.logged) < outagePause {
		return
	}
	o.log.Warn("the store fails", "error", err, "requests", o.requests)
	o.logged, o.requests, o.open = o.failed, 0, true
}

// answered notes that the store answered a call that began then. The level is that of the
// failure, because a reader who sees one line needs the other.
func (o *outage) answered(began time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.open || !began.After(o.failed) {
		return // an answer from before the failure says nothing about the store now
	}
	o.log.Warn("the store answers again", "requests", o.requests)
	o.requests, o.open = 0, false
}
