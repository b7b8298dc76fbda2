package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Harness says how to test one kind of store.
type Harness struct {
	// New makes a fresh, empty backend. A grant that its stores push (see store.Notifier)
	// lasts for turn, which is always store.PushedTTL with Virtual. New may be called
	// concurrently, and several times for one test.
	New func(t testing.TB, turn time.Duration) *Subject

	// Lacks declares what the backend cannot do, and why.
	Lacks map[Feature]string

	// Virtual runs every trial in a testing/synctest bubble. It is for stores that neither
	// leave the process nor block in system calls.
	Virtual bool

	// Short is the TTL of a lease that should expire. A store with coarse leases sets it to
	// twice the shortest. Default: 200 ms.
	Short time.Duration

	// Late is how long the backend may take to notice that a lease, a place or a record has
	// expired. Default: 100 ms, and 1 ms with Virtual.
	Late time.Duration

	// Seed repeats the random schedules of an earlier run, which logged it. Default: new
	// ones.
	Seed uint64

	// Parallel is how many properties are checked side by side. Each opens up to three
	// stores. Not used with Virtual. Default: 12.
	Parallel int

	// Crowd is how many waiters the longest queue has. A store whose queues are bounded below that
	// sets it. Default: 10,000.
	Crowd int

	// Unsure is how far apart the two bounds of the store's time may be, if it reads no server's
	// clock. What it says is left of a lease, a place or a record may be off by that. Default: 0.
	Unsure time.Duration
}

// Subject is one database, or another thing in which a store keeps its keys. Its functions
// are called from one goroutine at a time.
type Subject struct {
	// Open opens one more store on the data, as another process would. Without the feature
	// Processes it is called once, and once after each Restart or Wipe.
	Open func() store.Store

	// OpenSkewed is Open in a process whose own clock is wrong by d. Nil without the feature
	// Skew.
	OpenSkewed func(d time.Duration) store.Store

	// Restart stops the backend and starts it again with its data. The stores that were
	// opened before are not used any more. Nil without the feature Restart.
	Restart func()

	// Wipe makes the backend lose all its data. The stores that were opened before are not
	// used any more. Nil without the feature Wipe.
	Wipe func()
}

// Feature is what a backend may lack.
type Feature string

// The features. The kit finds out by itself what a store implements and which functions a
// Subject has. Only Processes must be declared.
const (
	Processes Feature = "processes" // several stores on the same data
	Skew      Feature = "skew"      // Subject.OpenSkewed
	Restart   Feature = "restart"   // Subject.Restart
	Wipe      Feature = "wipe"      // Subject.Wipe
	Inspector Feature = "inspector" // store.Inspector
	Notifier  Feature = "notifier"  // store.Notifier
	Pruner    Feature = "pruner"    // store.Pruner
)

// days is the feature that days pass at once. It follows from Virtual, so Lacks does not
// declare it.
const days Feature = "virtual time"

var features = []Feature{Processes, Skew, Restart, Wipe, Inspector, Notifier, Pruner}

// lacks returns why the backend lacks f, or "".
func (h *Harness) lacks(f Feature) string {
	if f == days {
		if h.Virtual {
			return ""
		}
		return "the backend runs in real time"
	}
	return h.Lacks[f]
}

// withDefaults fills the zero fields in. Its error names the field that is wrong.
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
	d.Crowd = cmp.Or(h.Crowd, 10_000)
	if d.Short < 20*time.Millisecond || d.Late < 0 || d.Unsure < 0 || d.Crowd < 0 || d.Parallel < 0 {
		return nil, errors.New("storetest: Harness.Short is below 20 ms, or Late, Unsure, Crowd or Parallel is negative")
	}
	return &d, nil
}

// declare reports each feature that is neither there nor declared, and each one that is
// both.
func (h *Harness) declare(t testing.TB, b *Subject, s store.Store) {
	_, inspector := s.(store.Inspector)
	_, notifier := s.(store.Notifier)
	_, pruner := s.(store.Pruner)
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

// Property is one thing that every store must do.
type Property struct {
	// Name is short, fit for a test's name, and unique.
	Name string
	// Why says what the property protects, for the author of a store that fails it.
	Why string
	// Needs are the features without which it cannot be checked. Default: none.
	Needs []Feature
	// Heavy properties use the processor instead of waiting, or need luck to find a
	// mistake. In real time they are checked only under the build tag nightly, one at a
	// time, before the others.
	Heavy bool
	// PushedEnds says that pushed grants expire in it. In real time they are short then, and
	// the property must not rely on a live one. In all other properties they last long.
	PushedEnds bool
	// Check checks the property once, on a fresh backend.
	Check func(t *Trial)
}

// Restarts reports whether the property that is tried restarts its backend, so that the backend must
// be its own.
func Restarts(t testing.TB) bool {
	return slices.ContainsFunc(Properties(), func(p Property) bool {
		return p.Name == path.Base(t.Name()) && slices.Contains(p.Needs, Restart)
	})
}

// Properties returns all properties. A new store passes them best in this order.
func Properties() []Property {
	return slices.Concat(
		claimProperties,
		expiryProperties,
		staleProperties,
		recordProperties,
		fingerprintProperties,
		abandonedProperties,
		unknownProperties,
		batchProperties,
		lookProperties,
		notifyProperties,
		turnProperties,
		relayProperties,
		pruneProperties,
		inspectProperties,
		forceProperties,
		raceProperties,
		scheduleProperties,
		cancelProperties,
		clockProperties,
		fenceProperties,
		keysProperties,
		queueProperties,
		permitsProperties,
		weightProperties,
		reserveProperties,
		fromProperties,
		numberProperties,
		graceProperties,
		undoProperties,
	)
}

func property(name, why string, check func(*Trial)) Property {
	return Property{Name: name, Why: why, Check: check}
}

func (p Property) needs(f ...Feature) Property {
	p.Needs = f
	return p
}

func (p Property) heavy() Property {
	p.Heavy = true
	return p
}

func (p Property) pushedEnds() Property {
	p.PushedEnds = true
	return p
}

// Run checks every property, each as a subtest of its own.
func Run(t *testing.T, harness *Harness) {
	t.Helper()
	h, err := harness.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	probe(t, h)
	var unchecked, skipped []string
	var heavy, light []Property
	for _, p := range Properties() {
		f, why := h.missing(p)
		switch {
		case f != "":
			t.Logf("not checked: %s: lacks %s: %s", p.Name, f, why)
			unchecked = append(unchecked, p.Name)
		case p.Heavy && !h.Virtual && !nightly:
			skipped = append(skipped, p.Name)
		case p.Heavy || h.Virtual:
			heavy = append(heavy, p)
		default:
			light = append(light, p)
		}
	}
	for _, p := range heavy {
		t.Run(p.Name, func(t *testing.T) { check(t, h, p) })
	}
	// Not t.Parallel, which runs one test on each processor, because these mostly wait for
	// leases to expire.
	var running sync.WaitGroup
	free := make(chan struct{}, h.Parallel)
	for _, p := range light {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			t.Run(p.Name, func(t *testing.T) { check(t, h, p) })
		})
	}
	running.Wait()
	t.Logf("%d properties checked, %d not checked: %q", len(heavy)+len(light), len(unchecked), unchecked)
	if len(skipped) > 0 {
		t.Logf("%d run only with -tags nightly: %q", len(skipped), skipped)
	}
}

// probe opens one store and compares what it can do with what was declared.
func probe(t *testing.T, h *Harness) {
	t.Run("Declared", func(t *testing.T) {
		look := func(t *testing.T) {
			b := h.New(t, store.PushedTTL)
			h.declare(t, b, b.Open())
		}
		if h.Virtual {
			synctest.Test(t, look)
		} else {
			look(t)
		}
	})
}

// missing returns the first feature that the property needs and the backend lacks, and why;
// "" if there is none.
func (h *Harness) missing(p Property) (Feature, string) {
	for _, f := range p.Needs {
		if why := h.lacks(f); why != "" {
			return f, why
		}
	}
	return "", ""
}

// check checks a property and reports the outcome as the test's.
func check(t *testing.T, h *Harness, p Property) {
	t.Helper()
	r := try(t, h, p)
	if r.Failed() {
		t.Errorf("%s\n\twhy it matters: %s", p.Name, p.Why)
	}
	r.replay(t)
}

// try checks a property and returns what it reported.
func try(t *testing.T, h *Harness, p Property) *recorder {
	t.Helper()
	var r *recorder
	trial := func(t *testing.T) {
		r = newRecorder(t)
		turn := h.turn(p)
		// On a goroutine of its own, because FailNow ends the goroutine that calls it.
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.Check(&Trial{TB: r, h: h, turn: turn, subject: h.New(r, turn)})
		}()
		<-done
	}
	if h.Virtual {
		synctest.Test(t, trial)
	} else {
		trial(t)
	}
	return r
}

// turn returns how long a pushed grant lasts while a property is checked.
func (h *Harness) turn(p Property) time.Duration {
	switch {
	case h.Virtual:
		return store.PushedTTL
	case p.PushedEnds:
		return h.Short
	}
	return long / 2
}
