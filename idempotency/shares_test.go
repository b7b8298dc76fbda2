package idempotency

import (
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/memory"
)

// TestDefaultBounds: without any option all Middlewares of a process share its budget. One request always
// has room.
func TestDefaultBounds(t *testing.T) {
	process := memory.Process()
	for _, o := range []*Options{nil, {MaxConcurrent: 5}} {
		r := o.withDefaults(dibs.Options{})
		if r.shares() != process {
			t.Errorf("%+v has a budget of its own", o)
		}
	}
	most := process.Memory.Most()
	large := (&Options{MaxBody: 8 * most, maxMemory: 2 * most}).withDefaults(dibs.Options{})
	if s := large.shares(); s.Memory.Most() < 2*most || s.Files.Most() < 8*most {
		t.Errorf("one request has no room: %d bytes, and %d in files", s.Memory.Most(), s.Files.Most())
	}
	if n := (&Options{MaxBodyMemory: 1 << 30}).shares().Memory.Most(); n != 1<<30 {
		t.Errorf("the bound is %d", n)
	}
}
