package storetest

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/store"
)

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
