package proxy

import (
	"errors"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/outage"
)

// noteStore notes what a request says about the store.
func noteStore(o *outage.Log, e idempotency.Event) {
	switch {
	case storeFailed(e):
		o.Failed(e.Err)
	case e.Claiming > 0 && e.Kind != idempotency.EventCanceled:
		o.AnsweredSince(e.Start)
	}
}

// storeFailed reports whether the store did not claim or settle the key.
func storeFailed(e idempotency.Event) bool {
	switch e.Kind {
	case idempotency.EventUnavailable, idempotency.EventBypassed:
		return !e.Start.IsZero()
	case idempotency.EventLost:
		return false // an operator may have released the key
	case idempotency.EventOverloaded:
		return false // the error names a bound
	}
	return e.Settling > 0 && e.Err != nil && !errors.Is(e.Err, dibs.ErrTooLarge) && e.Err != idempotency.ErrSlowClient
}
