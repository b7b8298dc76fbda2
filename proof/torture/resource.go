package torture

import (
	"sync"

	"github.com/dibs-go/dibs/proof/history"
)

// resources is what holders write to: one for each key, which remembers the highest
// fence that it has seen, as whoever guards a thing with fences does, and refuses lower
// ones. It lives with the runner, which no fault strikes.
type resources struct {
	w *history.Writer

	mu   sync.Mutex
	seen map[string]uint64
}

func newResources(w *history.Writer) *resources {
	return &resources{w: w, seen: map[string]uint64{}}
}

// take takes a worker's write or refuses it, and writes that down: in the order in which
// it decides.
func (r *resources) take(process, life int, m *message) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := history.Event{Kind: history.Write, Process: process, Life: life, Key: m.Key, Token: m.Token, Fence: m.Fence, Permits: 1}
	accepted := m.Fence >= r.seen[m.Key]
	if accepted {
		r.seen[m.Key] = m.Fence
	} else {
		e.Error = history.Refused
	}
	_ = r.w.Happened(e) // to a file; the end of the run finds out
	return accepted
}
