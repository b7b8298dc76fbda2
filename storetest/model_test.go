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
	t.Run("Virtual", func(t *testing.T) { Run(t, modelHarness(model.None, true)) })
	t.Run("Real", func(t *testing.T) { Run(t, modelHarness(model.None, false)) })
}
