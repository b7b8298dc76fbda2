package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
)

// Options say what is simulated. Nil and the zero value mean what is not broken.
type Options struct {
	// Server, when not nil, wraps the store where it is, behind the network.
	Server func(dibs.Store) dibs.Store
	// Client, when not nil, wraps each process's way to the store.
	Client func(dibs.Store) dibs.Store
	// Only, when not "", is the one kind of key that there is.
	Only Kind
}

// Forgets is the Name of the Fault event that pushes that the store lost all its data.
const Forgets = "data lost"

// Result is what a simulation came to.
type Result struct {
	Seed   uint64
	Events []history.Event
	// Left is what was still held or waited for when all clients were closed, and what
	// they said of that; nothing should be.
	Left []string
}

// Run runs the simulation that follows from the seed. It is to be called in a bubble of
// testing/synctest, and returns when nothing of it runs any more.
func Run(seed uint64, o *Options) *Result {
	if o == nil {
		o = &Options{}
	}
	w := &world{
		plan:  newPlan(seed, o.Only),
		began: time.Now(),
	}
	w.recording = newRecording(w.began)
	w.server = newServer(w)
	var store dibs.Store = w.server
	if o.Server != nil {
		store = o.Server(store)
	}
	w.client = o.Client
	w.store = store

	var fates, calm sync.WaitGroup
	for n := range w.plan.processes {
		p := newProcess(w, n+1)
		w.processes = append(w.processes, p)
	}
	for _, p := range w.processes {
		p.start()
		fates.Go(p.fate)
	}
	fates.Go(w.server.fate)
	fates.Wait()
	w.heal()

	time.Sleep(w.plan.calm)
	for i, p := range w.processes {
		time.Sleep(time.Duration(i) * time.Millisecond)
		calm.Go(func() { w.left(p.stop()) })
	}
	calm.Wait()
	if w.keeps() {
		time.Sleep(placeStands)
	}
	w.list()
	// Where the store did not answer, package jobs looks a second later whether a lease
	// that it could not end is lost by now.
	time.Sleep(2 * time.Second)
	w.server.silence()
	w.flights.Wait()
	w.server.close()
	return &Result{Seed: seed, Events: w.recording.events(), Left: w.remains}
}

// world is one simulation.
type world struct {
	plan      *plan
	began     time.Time
	recording *recording
	server    *server
	store     dibs.Store                  // the server, perhaps broken
	client    func(dibs.Store) dibs.Store // nil when it is not broken

	processes []*process
	flights   sync.WaitGroup // what is on its way, and what is being closed

	mu      sync.Mutex
	calm    bool
	places  []dibs.Place // reserved and to be redeemed by whoever comes first
	jobs    []queued     // to be run by whoever comes first
	remains []string
	kept    bool // a place stands until it runs out
	serial  uint64
}

// now is the time since the simulation began, and a little, as 0 is not a time.
func (w *world) now() time.Duration { return w.recording.now() }

// heal ends all faults.
func (w *world) heal() {
	w.mu.Lock()
	w.calm = true
	w.places = nil
	w.mu.Unlock()
	w.recording.note(history.Event{Kind: history.FaultsEnd})
}

func (w *world) healed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

// next returns a number that was not given out before.
func (w *world) next() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serial++
	return w.serial
}

// left notes what should not be left.
func (w *world) left(err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remains = append(w.remains, err.Error())
}

// list notes what is held or waited for though nobody is there.
func (w *world) list() {
	i, ok := w.store.(dibs.Inspector)
	if !ok {
		return
	}
	for e, err := range i.List(context.Background(), dibs.Query{}) {
		switch {
		case err != nil:
			w.left(err)
		case e.Condition == dibs.ConditionHeld, e.Condition == dibs.ConditionWaiting:
			var text strings.Builder
			fmt.Fprintf(&text, "%s is %s, with %d places", e.Key.Name, e.Condition, e.Waiters)
			for _, a := range e.Attempts {
				fmt.Fprintf(&text, ", by %s, with fence %d, since %v, for %v more", a.ID, a.Fence, a.Since, a.Left)
			}
			w.left(errors.New(text.String()))
		}
	}
}

// offer leaves a place to be redeemed, unless the end is near, and reports whether it did.
func (w *world) offer(p dibs.Place) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.calm {
		w.places = append(w.places, p)
	}
	return !w.calm
}

// keep notes that a place was reserved by a client that was closed before it could give
// the place up.
func (w *world) keep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = true
}

// keeps reports whether a place was reserved so late that nobody gave it up or ran its
// job. It stands until it runs out, and that is all that is promised.
func (w *world) keeps() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kept || len(w.jobs) > 0
}

// take takes a place that was offered.
func (w *world) take(n int) (p dibs.Place, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.places) == 0 {
		return p, false
	}
	i := n % len(w.places)
	p = w.places[i]
	w.places = append(w.places[:i:i], w.places[i+1:]...)
	return p, true
}
