package page

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// checkedFor is for how long a check of the store's set-up counts.
const checkedFor = time.Minute

// health is how the store answers.
type health struct {
	mu      sync.Mutex // held while the store is asked: other pages wait for the same answer
	asked   time.Time
	took    time.Duration
	err     error
	checked time.Time
	found   []store.Finding // the worst first
}

// ask asks the store one question, once in a beat for all pages, and checks its set-up once a minute.
func (h *health) ask(s store.Store) (took time.Duration, found []store.Finding, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.asked.IsZero() && time.Since(h.asked) < fresh {
		return h.took, h.found, h.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeLimit)
	defer cancel()
	began := time.Now()
	h.err = storekit.Probe(ctx, s)
	h.took = time.Since(began)
	if c, ok := s.(store.Checker); ok && h.err == nil && (h.checked.IsZero() || time.Since(h.checked) >= checkedFor) {
		if found, err := c.Check(ctx); err == nil {
			slices.SortStableFunc(found, store.Finding.Compare)
			h.found = found
		}
		h.checked = time.Now()
	}
	h.asked = time.Now()
	return h.took, h.found, h.err
}
