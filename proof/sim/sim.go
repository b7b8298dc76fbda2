package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// Kinds are all kinds of keys.
var Kinds = []workload.Kind{workload.Mutex, workload.Pool, workload.Once, workload.AtMostOnce, workload.Job, workload.NoClient}

// key is one key of a plan.
type key struct {
	workload.Key
	queued bool // of Job: by package jobs
}

// plan is what follows from a seed before a simulation begins.
type plan struct {
	seed      uint64
	processes int
	workers   int // in each process
	keys      []key
	ttl       time.Duration
	timeout   time.Duration // of a call of the store
	faulty    time.Duration // for how long there are faults
	calm      time.Duration // and for how long there are none then
	pushes    bool          // the store pushes grants
	direct    bool          // calls are not batched

	// Out of 1,000 messages, how many meet that fate.
	lost, reset, twice, slow int
	slowest                  time.Duration

	// Out of 100 turns of a process's or the server's fate.
	pauses, kills, parts, restarts, forgets int
}

// newPlan makes the plan of a seed, with keys of one kind only, if that is not "".
func newPlan(seed uint64, only workload.Kind) *plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := &plan{
		seed:      seed,
		processes: 2 + r.IntN(3),
		workers:   1 + r.IntN(3),
		ttl:       pick(r, 300*time.Millisecond, 500*time.Millisecond, time.Second, 2*time.Second),
		timeout:   pick(r, 300*time.Millisecond, time.Second, 3*time.Second),
		faulty:    1500*time.Millisecond + rand64(r, 3*time.Second),
		pushes:    r.IntN(2) == 0,
		direct:    r.IntN(4) == 0,
		lost:      pick(r, 0, 10, 50),
		reset:     pick(r, 0, 10, 50),
		twice:     pick(r, 0, 10, 50),
		slow:      pick(r, 0, 20, 100),
		slowest:   pick(r, 100*time.Millisecond, 500*time.Millisecond, 1500*time.Millisecond),
		pauses:    pick(r, 0, 30, 60),
		kills:     pick(r, 0, 10, 20),
		parts:     pick(r, 0, 15, 30),
		restarts:  pick(r, 0, 15, 30),
		forgets:   pick(r, 0, 0, 0, 20),
	}
	if r.IntN(5) == 0 {
		p.lost, p.reset, p.twice, p.slow = 0, 0, 0, 0
	}
	// What is left of what was sent, reserved or held under faults is over by then.
	p.calm = max(p.ttl, placeStands, p.slowest) + 1700*time.Millisecond
	for n := range 1 + r.IntN(3) {
		k := key{Key: workload.Key{Kind: Kinds[r.IntN(len(Kinds))], Permits: 1, Retention: 24 * time.Hour}}
		if only != "" {
			k.Kind = only
		}
		k.queued = k.Kind == workload.Job && (seed+uint64(n))%2 == 0
		switch k.Kind {
		case workload.Pool:
			k.Permits = 2 + r.IntN(2)
		case workload.Once, workload.NoClient:
			if r.IntN(2) == 0 {
				k.Retention = 200*time.Millisecond + rand64(r, 2*time.Second)
			}
		}
		k.Name = fmt.Sprintf("%s %d", k.Kind, n+1)
		p.keys = append(p.keys, k)
	}
	return p
}

// locks returns the names of the locks.
func (p *plan) locks() (names []string) {
	for _, k := range p.keys {
		if k.Kind == workload.Mutex {
			names = append(names, k.Name)
		}
	}
	return names
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// rand64 returns a duration below d.
func rand64(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// among returns a source of random numbers for one part of the simulation. Its numbers do not
// depend on the other parts.
func (p *plan) among(part ...uint64) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, n := range part {
		for range 8 {
			h = (h ^ n&0xff) * 1099511628211
			n >>= 8
		}
	}
	return rand.New(rand.NewPCG(p.seed, h|1))
}
