package storetest

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/storetest/internal/model"
)

// modelHarness tests the model with one bug, or none.
func modelHarness(bug model.Bug, virtual bool) *Harness {
	return &Harness{
		Virtual: virtual,
		crowd:   1000,
		New: func(testing.TB) *Backend {
			b := model.New(bug)
			return &Backend{
				Open:       func() dibs.Store { return b.Open(0) },
				OpenSkewed: func(d time.Duration) dibs.Store { return b.Open(d) },
				Restart:    b.Restart,
				Wipe:       b.Wipe,
			}
		},
	}
}

// The simplest correct store passes, in virtual time and, as a store over a
// network would have to, in real time.
func TestModel(t *testing.T) {
	t.Parallel()
	for name, virtual := range map[string]bool{"Virtual": true, "Real": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // in real time it mostly waits
			Run(t, modelHarness(model.None, virtual))
		})
	}
}
