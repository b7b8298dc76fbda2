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
	"github.com/dibs-go/dibs/proof/workload"
	"github.com/dibs-go/dibs/store"
)

// Options say what is broken. Nil and the zero value mean nothing.
type Options struct {
	// Server, if not nil, wraps the store behind the network.
	Server func(dibs.Store) dibs.Store
	// Client, if not nil, wraps each process's connection to the store.
	Client func(dibs.Store) dibs.Store
	// Only, if not "", is the one kind of all keys.
	Only workload.Kind
}

// Forgets is the Name of the Fault event after which the store has lost its data.
const Forgets = "data lost"

// Result is the result of a simulation.
type Result struct {
	Seed   uint64
	Events []history.Event
	// Left is what was still held or waited for after all clients were closed, and their errors.
	// It should be empty.
	Left []string
}

// Run runs the simulation of a seed, in a bubble of testing/synctest. It returns when all its
// goroutines have ended.
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
	places    workload.Places
	flights   sync.WaitGroup // what is on its way, and what is being closed

	mu      sync.Mutex
	calm    bool
	jobs    []queued // for any worker to run
	remains []string
	serial  uint64
}

// now is the time since the simulation began, and a little, as 0 is not a time.
func (w *world) now() time.Duration { return w.recording.now() }

// heal ends all faults.
func (w *world) heal() {
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	w.places.Close()
	w.recording.note(history.Event{Kind: history.FaultsEnd})
}

func (w *world) healed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

// next returns a new number.
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

// list notes the keys that are held or waited for at the end.
func (w *world) list() {
	i, ok := w.store.(store.Inspector)
	if !ok {
		return
	}
	for e, err := range i.List(context.Background(), store.Query{}) {
		switch {
		case err != nil:
			w.left(err)
		case e.Condition == store.ConditionHeld, e.Condition == store.ConditionWaiting:
			var text strings.Builder
			fmt.Fprintf(&text, "%s is %s, with %d waiters and %d reserved places", e.Key.Name, e.Condition, e.Waiters, e.Reserved)
			for _, a := range e.Runs {
				fmt.Fprintf(&text, ", by %s, with fence %d, since %v, for %v more", a.ID, a.Fence, a.Since, a.Left)
			}
			w.left(errors.New(text.String()))
		}
	}
}

// keeps reports whether a place was reserved so late that it stands until it runs out.
func (w *world) keeps() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.places.Kept() || len(w.jobs) > 0
}
