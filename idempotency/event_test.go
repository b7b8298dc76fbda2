package idempotency_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/dibs-go/dibs/idempotency"
)

type traceKey struct{}

// A replay names the trace of the run whose answer it is, and no client sees that.
func TestReplayNamesTheFirstTrace(t *testing.T) {
	const first = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	g := newRig(t, &idempotency.Options{Trace: func(ctx context.Context) string {
		trace, _ := ctx.Value(traceKey{}).(string)
		return trace
	}}, nil)
	within := func(trace string) change {
		return func(r *http.Request) { *r = *r.WithContext(context.WithValue(r.Context(), traceKey{}, trace)) }
	}
	isFresh(t, g.send(within(first)), 201)
	w := g.send(within("another"))
	if e := g.last(); e.Outcome != idempotency.OutcomeReplayed || e.First != first {
		t.Errorf("told %+v", e)
	}
	for name, values := range w.Header() {
		for _, value := range values {
			if value == first {
				t.Errorf("the replay has %s: %s", name, value)
			}
		}
	}
}
