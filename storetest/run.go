package storetest

import (
	"sync"
	"testing"
	"testing/synctest"
)

// Run checks every property, each as a subtest of its own.
func Run(t *testing.T, harness *Harness) {
	t.Helper()
	h, err := harness.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	probe(t, h)
	var unchecked []string
	var heavy, light []Property
	for _, p := range Properties() {
		if f, why := h.missing(p); f != "" {
			t.Logf("not checked: %s: lacks %s: %s", p.Name, f, why)
			unchecked = append(unchecked, p.Name)
		} else if p.Heavy || h.Virtual {
			heavy = append(heavy, p)
		} else {
			light = append(light, p)
		}
	}
	for _, p := range heavy {
		t.Run(p.Name, func(t *testing.T) { check(t, h, p, new(sync.RWMutex)) })
	}
	// Subtests that are marked parallel are limited to one for each processor,
	// but these hardly need one: they wait for leases to run out.
	var running sync.WaitGroup
	var together sync.RWMutex
	free := make(chan struct{}, h.Parallel)
	for _, p := range light {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			t.Run(p.Name, func(t *testing.T) { check(t, h, p, &together) })
		})
	}
	running.Wait()
	t.Logf("%d properties checked, %d not checked: %q", len(heavy)+len(light), len(unchecked), unchecked)
}

// probe opens one store to compare what it can do with what was declared.
func probe(t *testing.T, h *Harness) {
	t.Run("Declared", func(t *testing.T) {
		look := func(t *testing.T) {
			b := h.New(t)
			h.declare(t, b, b.Open())
		}
		if h.Virtual {
			synctest.Test(t, look)
		} else {
			look(t)
		}
	})
}

// missing returns the first feature that the property needs and the backend
// lacks, and why; "" when there is none.
func (h *Harness) missing(p Property) (Feature, string) {
	for _, f := range p.Needs {
		if why := h.lacks(f); why != "" {
			return f, why
		}
	}
	return "", ""
}

// check tries a property and reports the outcome as the test's. Others are tried
// together with it, but for a trial that is made alone.
func check(t *testing.T, h *Harness, p Property, together *sync.RWMutex) {
	t.Helper()
	last, excused := retry(h, p, func(alone bool) *recorder {
		if alone {
			together.Lock()
			defer together.Unlock()
		} else {
			together.RLock()
			defer together.RUnlock()
		}
		return try(t, h, p)
	})
	for i, r := range excused {
		t.Logf("trial %d failed while the machine was slow (%s), so it was made again; it said:", i+1, r.pace())
		r.replay(t)
	}
	if last.Failed() {
		t.Errorf("%s\n\twhy it matters: %s", p.Name, p.Why)
	}
	last.replay(t)
}

// retry makes trials until one passes, fails without an excuse, or is the
// fifth. It returns that one, and those before it. From the third on they are made
// alone: what made the machine slow may be the others.
func retry(h *Harness, p Property, try func(alone bool) *recorder) (last *recorder, excused []*recorder) {
	const most, together = 5, 2
	for {
		r := try(len(excused) >= together)
		if !r.Failed() || h.Virtual || !r.excused(h.Short, p.Heavy) || len(excused) == most-1 {
			return r, excused
		}
		excused = append(excused, r)
	}
}

// try makes one trial of a property and returns what it reported.
func try(t *testing.T, h *Harness, p Property) *recorder {
	t.Helper()
	var r *recorder
	trial := func(t *testing.T) {
		r = newRecorder(t)
		watched := r.watch(h.Virtual)
		defer watched()
		// FailNow ends the goroutine that calls it, so the check has its own.
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.Check(&Trial{TB: r, h: h, rec: r, backend: h.New(r)})
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
