package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind says what a fault strikes.
type Kind string

// The kinds of faults.
const (
	Worker  Kind = "worker"  // the processes that use the store
	Network Kind = "network" // what is between them and the server
	Host    Kind = "server"  // the server's process and its connections
	Data    Kind = "data"    // what the server knows
	Manages Kind = "manager" // what decides which server is the primary
	File    Kind = "file"    // the file of a store that is one
)

// Fault is one kind of fault.
type Fault struct {
	// Name names it in lists and reports, such as "kill".
	Name string
	Kind Kind
	// About says what happens. Evidence says what counts as a hit.
	About, Evidence string
	// Forgets says that the store may lose leases, places and records that it acknowledged, or
	// take them for older than they are. Fences rise all the same.
	Forgets bool
	// Stale says that some workers may be answered, without any change, from a state of when the
	// fault began.
	Stale bool
	// Destroys says that it takes something away from other users of the server.
	Destroys bool
	// Alone says that it must not meet other faults, because their effects would look
	// alike.
	Alone bool

	gate    string // faults with the same one do not strike at once
	applies func(*Target) error
	strike  func(context.Context, *Target, *rand.Rand) (int, error)
}

// Absent is a fault that does not apply to a target.
type Absent struct {
	Name, Why string
}

// All returns every fault, in the order of reports.
func All() []*Fault {
	return slices.Concat(workerFaults(), networkFaults(), serverFaults(), dataFaults(), failoverFaults(), managerFaults(), fileFaults())
}

// Names returns the names of all faults, in the order of reports.
func Names() []string {
	var names []string
	for _, f := range All() {
		names = append(names, f.Name)
	}
	return names
}

// List says which faults are wanted.
type List struct {
	wanted map[string]bool // by the name of the fault
	named  map[string]bool // by its own name, not by its kind or by "all"
}

// ParseList reads names and kinds of faults with commas between them. "all" is all, "none"
// none, and a "-" before a word takes its faults out again. An empty list is all. It returns
// an error if a word is not a fault's.
func ParseList(list string) (List, error) {
	l := List{map[string]bool{}, map[string]bool{}}
	all, empty := All(), strings.TrimSpace(list) == ""
	for i, word := range strings.Split(list, ",") {
		word, without := strings.CutPrefix(strings.TrimSpace(word), "-")
		if without && i == 0 || empty {
			for _, f := range all {
				l.wanted[f.Name] = true
			}
		}
		known := word == "all" || word == "none" || empty
		for _, f := range all {
			if word == f.Name || word == string(f.Kind) || word == "all" {
				l.wanted[f.Name], known = !without, true
			}
			l.named[f.Name] = l.named[f.Name] || word == f.Name && !without
		}
		if !known {
			return l, fmt.Errorf("there is no fault %q; there are %s, the kinds worker, network, server, data, manager and file, all and none",
				word, strings.Join(Names(), ", "))
		}
	}
	return l, nil
}

// Named reports whether the list has the fault by its own name.
func (l List) Named(name string) bool { return l.named[name] }

// Select returns the faults of the list that apply to the target, and those that do not with
// the reason. A fault that takes something away from others does not apply to a server that
// is not the run's own, unless the list names it. Its errors are those of ParseList.
func Select(t *Target, list string) (apply []*Fault, absent []Absent, err error) {
	l, err := ParseList(list)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range All() {
		if !l.wanted[f.Name] {
			continue
		}
		if err := f.Applies(t, l.Named(f.Name)); err != nil {
			absent = append(absent, Absent{f.Name, err.Error()})
			continue
		}
		apply = append(apply, f.of(t))
	}
	return apply, absent, nil
}

// of returns the fault for the target.
func (f *Fault) of(t *Target) *Fault {
	g := *f
	switch f.Name {
	case "server-kill":
		g.Forgets = !t.Durable
	case "server-clock":
		g.Forgets = !t.Clockless
	case "failover", "split":
		g.Forgets = !t.Synchronous
		g.Stale = f.Name == "split" && t.Synchronous
	case "manager-stop", "manager-cut":
		g.Stale = true
	}
	return &g
}

// errOthers is why a fault does not apply that would take something away from other users.
var errOthers = errors.New("it takes something away from other users of the server; name it in the list to have it")

// Applies returns nil if the fault can strike the target, and otherwise why it cannot. named
// says that a list has it by its own name.
func (f *Fault) Applies(t *Target, named bool) error {
	if err := f.applies(t); err != nil {
		return err
	}
	if f.Destroys && t.Server == nil && !named {
		return errOthers
	}
	return nil
}

// Strike makes the fault once, heals it, even if ctx ends meanwhile, and returns how often it
// hit. It may be called concurrently with other faults', and waits for those that it cannot
// meet. It uses the random source only during the call.
//
// It returns an error if the fault could not be made or healed.
func (f *Fault) Strike(ctx context.Context, t *Target, r *rand.Rand) (hits int, err error) {
	leave, ok := t.enter(ctx, f.gate)
	if !ok {
		return 0, nil
	}
	defer leave()
	if t.Began != nil {
		t.Began(f)
	}
	if hits, err = f.strike(ctx, t, r); err != nil {
		err = fmt.Errorf("fault %s: %w", f.Name, err)
	}
	return hits, err
}

func workerFaults() []*Fault {
	return []*Fault{
		{
			Name: "kill", Kind: Worker, applies: needWorkers, strike: kill,
			About: "a worker is killed (SIGKILL) in whatever it does, and starts again", Evidence: "a process that ended by the signal",
		},
		{
			Name: "stop", Kind: Worker, applies: needWorkers, strike: stop,
			About: "a worker pauses (SIGSTOP) until its leases have run out, and continues with what it was at (SIGCONT)", Evidence: "a lease that its worker lost by pausing",
		},
	}
}

// needWorkers returns nil if there are worker processes.
func needWorkers(t *Target) error {
	if t.Workers == nil || t.Workers.Len() == 0 {
		return errors.New("there are no worker processes")
	}
	return nil
}

func kill(_ context.Context, t *Target, r *rand.Rand) (int, error) {
	i, release, ok := t.worker(r)
	if !ok {
		return 0, nil
	}
	defer release()
	killed, err := t.Workers.Kill(i)
	if err != nil || !killed {
		return 0, err
	}
	return 1, nil
}

func stop(ctx context.Context, t *Target, r *rand.Rand) (int, error) {
	i, release, ok := t.worker(r)
	if !ok {
		return 0, nil
	}
	defer release()
	before := t.Workers.Lost(i)
	d := t.long(r)
	begin := time.Now()
	stopped, err := t.Workers.Stop(ctx, i, d)
	if err != nil || !stopped || time.Since(begin) < t.lease() {
		return 0, err
	}
	// It finds out when it runs again, and says so a moment later.
	await(evidence/3, func() bool { return t.Workers.Lost(i) > before })
	return t.Workers.Lost(i) - before, nil
}
