package fault

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/prove/wire"
)

// Target is what faults strike: a store, its server, and the worker processes. Faults that need
// a field which is nil or empty do not apply.
type Target struct {
	// URL is the store's URL, without any wire. Faults connect to the server with it.
	URL string
	// Workers are the processes that use the store. Worker i stays worker i when its process is
	// started again. The methods may be called concurrently, but never Kill and Stop for one
	// worker.
	Workers Workers
	// Wires lead from the workers to the server: wire i from worker i. See Through.
	Wires []*wire.Wire
	// Server is the server's process, if it is the run's own and has no other users.
	Server Server
	// Failover puts another server in the place of this one.
	Failover Failover
	// Manager decides which server is the primary.
	Manager Manager
	// Clock is the server's clock.
	Clock Clock
	// Clockless says that no wall clock decides anything, so that the store forgets nothing when the
	// server's clock steps.
	Clockless bool
	// Durable says that a killed server still has everything that it acknowledged after its
	// restart.
	Durable bool
	// Synchronous says that a call is acknowledged only when a replica has it, so that the replica
	// that Failover promotes has everything that was acknowledged.
	Synchronous bool
	// TTL is how long the workers' leases last. Faults last about as long. Default: a second.
	TTL time.Duration
	// Began, if not nil, is called when a fault that was waiting for others begins.
	Began func(*Fault)

	mu    sync.Mutex
	moved string // the address that the server has since a failover
	taken map[any]bool
	gates map[string]chan struct{}
}

// Workers are the processes that use the store. Worker i is always the i-th, however
// often its process was started again. The methods may be called concurrently, but never
// Kill and Stop for one worker.
type Workers interface {
	// Len is how many there are.
	Len() int

	// PID is the process of worker i, 0 while there is none.
	PID(i int) int

	// Kill kills the process of worker i (SIGKILL), waits until it is gone, and has it started
	// again, soon, without waiting for that. It reports whether the process ended by the
	// signal.
	Kill(i int) (killed bool, err error)

	// Stop stops the process of worker i (SIGSTOP) and lets it go on (SIGCONT) after d, or
	// when the context ends. It reports whether the process paused.
	Stop(ctx context.Context, i int, d time.Duration) (stopped bool, err error)

	// Lost is how many leases worker i has reported as lost so far, over all its restarts.
	Lost(i int) int

	// Failed is how many answers the workers have had so far, all of them, that were an
	// error with the text in it. Upper and lower case are the same.
	Failed(text string) int
}

// Server is a server's process. Its methods return when the thing is done, and end the run
// when it cannot be done. The servers of internal/prove/servertest are Servers.
type Server interface {
	// Kill ends the server at once (SIGKILL).
	Kill()
	// Restart starts it again, at its address and with what it has on disk.
	Restart()
	// Pause stops it where it is (SIGSTOP).
	Pause()
	// Continue lets it go on (SIGCONT).
	Continue()
}

// Failover puts a replica in a server's place.
type Failover interface {
	// Lag keeps a replica from hearing of what is written from now on. It has everything that
	// was written before.
	Lag() error
	// Promote makes a replica the server, with what it has, and returns its address. The old
	// server is taken away first, unless it stays: then it continues, cut off from its replicas.
	Promote(stays bool) (addr string, err error)
	// Rebuild takes the old server away, if it has stayed, and makes a replica of it, which is in
	// step when this returns. It returns, by the servers' own count, how much the old server had
	// done that the new one does not have: bytes, or how often a replica could not resynchronize.
	Rebuild() (behind int64, err error)
}

// Clock is a clock that can be set wrong.
type Clock interface {
	// Step sets how far the clock is ahead of the true time; it is behind if that is negative.
	Step(ahead time.Duration) error
}

// lease returns how long the workers' leases last.
func (t *Target) lease() time.Duration {
	if t.TTL == 0 {
		return time.Second
	}
	return t.TTL
}

// spell returns how long a fault lasts: shorter than a lease as often as longer.
func (t *Target) spell(r *rand.Rand) time.Duration {
	return t.lease()/4 + time.Duration(r.Int64N(int64(t.lease()*3/2)))
}

// lasting lets a fault last for a spell, and longer while it has not hit, because workers on a
// busy machine come late.
func (t *Target) lasting(ctx context.Context, spell time.Duration, hit func() bool) {
	_ = backoff.Sleep(ctx, spell)
	for end := time.Now().Add(4 * t.lease()); !hit() && time.Now().Before(end) && ctx.Err() == nil; {
		_ = backoff.Sleep(ctx, 10*time.Millisecond)
	}
}

// long returns a time in which a lease runs out.
func (t *Target) long(r *rand.Rand) time.Duration {
	return t.lease()*5/4 + time.Duration(r.Int64N(int64(t.lease())))
}

// backend returns the kind of the store: redis, postgres, mysql, sqlite, http (dibs serve), or the URL's scheme.
func (t *Target) backend() string {
	scheme, _, _ := strings.Cut(t.URL, ":")
	switch scheme {
	case "redis", "rediss":
		return "redis"
	case "postgres", "postgresql":
		return "postgres"
	case "mysql", "mariadb":
		return "mysql"
	}
	return scheme
}

// url returns the store's URL with the address that the server has now.
func (t *Target) url() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.moved == "" {
		return t.URL
	}
	return at(t.URL, t.moved)
}

// enter waits until no other fault is at the gate, or ctx ends. It reports whether the fault may
// strike; then no other may until leave is called.
func (t *Target) enter(ctx context.Context, gate string) (leave func(), ok bool) {
	if gate == "" {
		return func() {}, ctx.Err() == nil
	}
	t.mu.Lock()
	if t.gates == nil {
		t.gates = map[string]chan struct{}{}
	}
	if t.gates[gate] == nil {
		t.gates[gate] = make(chan struct{}, 1)
	}
	g := t.gates[gate]
	t.mu.Unlock()
	select {
	case g <- struct{}{}:
		if ctx.Err() == nil {
			return func() { <-g }, true
		}
		<-g
	case <-ctx.Done():
	}
	return nil, false
}

// worker picks a worker that runs and that no other fault strikes.
func (t *Target) worker(r *rand.Rand) (i int, release func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range r.Perm(t.Workers.Len()) {
		if t.Workers.PID(i) != 0 && t.take(i) {
			return i, t.giveBack(i), true
		}
	}
	return 0, nil, false
}

// wires picks wires that no other fault strikes: sometimes all, more often some, so that some
// workers still reach the server.
func (t *Target) wires(r *rand.Rand) (some []*wire.Wire, release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.Wires)
	if r.IntN(3) > 0 {
		n = 1 + r.IntN(n)
	}
	var taken []any
	for _, i := range r.Perm(len(t.Wires)) {
		if w := t.Wires[i]; len(some) < n && t.take(w) {
			some, taken = append(some, w), append(taken, w)
		}
	}
	return some, t.giveBack(taken...)
}

// take takes what no other fault has. Called with mu held.
func (t *Target) take(what any) bool {
	if t.taken == nil {
		t.taken = map[any]bool{}
	}
	if t.taken[what] {
		return false
	}
	t.taken[what] = true
	return true
}

func (t *Target) giveBack(what ...any) func() {
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, w := range what {
			delete(t.taken, w)
		}
	}
}

// evidence is how long a fault waits for the evidence of a hit.
const evidence = 3 * time.Second

// await repeats a question until the answer is yes, for at most limit.
func await(limit time.Duration, there func() bool) bool {
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		if there() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}
