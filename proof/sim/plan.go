package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs/proof/workload"
)

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
