package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// Harness says how to test one kind of store.
type Harness struct {
	// New makes a fresh, empty backend. A grant that its stores tell (see dibs.Notifier)
	// lasts for turn: always dibs.PushedTTL with Virtual. New may be called concurrently,
	// and several times for one test.
	New func(t testing.TB, turn time.Duration) *Backend

	// Lacks declares what the backend cannot do, and why.
	Lacks map[Feature]string

	// Virtual runs every trial in a testing/synctest bubble. It is for stores
	// that neither leave the process nor block in system calls.
	Virtual bool

	// Short is the lease of a holder that is meant to run out; 200 ms when 0.
	// Stores that know only coarse leases set it to twice the smallest.
	Short time.Duration

	// Late is how long after its end the backend may still take a lease, a
	// place or a record for alive; 100 ms when 0, 1 ms with Virtual.
	Late time.Duration

	// Seed makes the random schedules those of an earlier run, which logged it;
	// 0 makes new ones.
	Seed uint64

	// Parallel is how many properties are checked side by side; 12 when 0. Each
	// opens up to three stores. It is not used with Virtual.
	Parallel int

	// crowd is how many wait in TenThousandWaiters; 0 means what it says. The
	// model looks at every place in each step.
	crowd int
}

// Backend is one database, or whatever else a store keeps its keys in. Its
// functions are called from one goroutine at a time.
type Backend struct {
	// Open opens one more store on the data, as another process would. Without
	// the feature Processes it is called once, and again after a Restart or a
	// Wipe.
	Open func() dibs.Store

	// OpenSkewed is Open in a process whose own clock is off by d. Nil when the
	// feature Skew is lacking.
	OpenSkewed func(d time.Duration) dibs.Store

	// Restart stops the backend and starts it again with the data it had. The
	// stores opened before are used no more. Nil when the feature Restart is
	// lacking.
	Restart func()

	// Wipe makes the backend lose all its data. The stores opened before are
	// used no more. Nil when the feature Wipe is lacking.
	Wipe func()
}

// Feature is something that a backend may honestly lack.
type Feature string

// The features. What a store implements is read off the store, what can be
// done to a backend off the functions of Backend; Processes is only declared.
const (
	Processes Feature = "processes" // several stores on the same data
	Skew      Feature = "skew"      // Backend.OpenSkewed
	Restart   Feature = "restart"   // Backend.Restart
	Wipe      Feature = "wipe"      // Backend.Wipe
	Inspector Feature = "inspector" // dibs.Inspector
	Notifier  Feature = "notifier"  // dibs.Notifier
	Pruner    Feature = "pruner"    // dibs.Pruner
)

// days is the feature of having days to spare. It follows from Virtual and is
// not a matter for Lacks.
const days Feature = "virtual time"

var features = []Feature{Processes, Skew, Restart, Wipe, Inspector, Notifier, Pruner}

// lacks returns why the harness cannot check what needs f, or "".
func (h *Harness) lacks(f Feature) string {
	if f == days {
		if h.Virtual {
			return ""
		}
		return "the backend runs in real time"
	}
	return h.Lacks[f]
}

// withDefaults returns the harness with every zero field filled in, and an
// error that names the field that is wrong.
func (h *Harness) withDefaults() (*Harness, error) {
	if h == nil || h.New == nil {
		return nil, errors.New("storetest: Harness.New is nil")
	}
	for f, why := range h.Lacks {
		if !slices.Contains(features, f) {
			return nil, fmt.Errorf("storetest: Harness.Lacks has %q; the features are %q", f, features)
		}
		if why == "" {
			return nil, fmt.Errorf("storetest: Harness.Lacks[%q] has no reason", f)
		}
	}
	late := 100 * time.Millisecond
	if h.Virtual {
		late = time.Millisecond
	}
	d := *h
	d.Lacks = maps.Clone(h.Lacks)
	d.Short = cmp.Or(h.Short, 200*time.Millisecond)
	d.Late = cmp.Or(h.Late, late)
	d.Parallel = cmp.Or(h.Parallel, 12)
	d.crowd = cmp.Or(h.crowd, 10_000)
	if d.Short < 20*time.Millisecond || d.Late < 0 || d.Parallel < 0 {
		return nil, errors.New("storetest: Harness.Short is below 20 ms, or Late or Parallel is negative")
	}
	return &d, nil
}

// declare reports every feature that is neither there nor declared as lacking,
// and every one that is both.
func (h *Harness) declare(t testing.TB, b *Backend, s dibs.Store) {
	_, inspector := s.(dibs.Inspector)
	_, notifier := s.(dibs.Notifier)
	_, pruner := s.(dibs.Pruner)
	has := map[Feature]bool{
		Skew:      b.OpenSkewed != nil,
		Restart:   b.Restart != nil,
		Wipe:      b.Wipe != nil,
		Inspector: inspector,
		Notifier:  notifier,
		Pruner:    pruner,
	}
	for _, f := range features {
		there, readable := has[f]
		switch why := h.Lacks[f]; {
		case !readable:
		case there && why != "":
			t.Errorf("storetest: Lacks declares %q (%s), but it is there", f, why)
		case !there && why == "":
			t.Errorf("storetest: the feature %q is missing and Lacks does not say why", f)
		}
	}
}
