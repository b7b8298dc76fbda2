package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestStepInAHandler: a run that crashed after its first step is taken over by
// the retry, which skips that step.
func TestStepInAHandler(t *testing.T) {
	var charges, mails atomic.Int64
	handler := func(w http.ResponseWriter, r *http.Request) {
		id, err := dibs.Step(r.Context(), "charge", func(context.Context) (string, error) {
			return fmt.Sprintf("ch_%d", charges.Add(1)), nil
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if mails.Add(1) == 1 {
			// As if the process died here: nothing is settled by it.
			lease, ok := dibs.FromContext(r.Context())
			if !ok {
				t.Error("the handler's context carries no lease")
			}
			testkit.Check(t, lease.Abandon(r.Context()))
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, id)
	}
	g := newRig(t, nil, handler)
	g.sendBroken()
	w := g.send()
	if w.Code != 200 || w.Body.String() != "ch_1" || charges.Load() != 1 || mails.Load() != 2 {
		t.Errorf("%d, %q after %d charges and %d mails", w.Code, w.Body, charges.Load(), mails.Load())
	}
	isReplay(t, g.send(), w)

	// Without a key there is nothing to remember a step with.
	if w := g.send(with("Idempotency-Key")); w.Code != 500 || strings.TrimSpace(w.Body.String()) != dibs.ErrNoLease.Error() {
		t.Errorf("without a key: %d, %q", w.Code, w.Body)
	}
}
