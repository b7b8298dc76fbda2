// Package workload is what callers do with a store in the simulation and in the torture: who claims,
// renews, waits, reserves and settles, as programs do and in ways that programs must not. The two
// differ in time, faults and transport, which are the caller's Program.
package workload

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
)

// Kind is what a key is used for.
type Kind string

// The kinds of keys.
const (
	Mutex      Kind = "mutex"        // a lock
	Pool       Kind = "pool"         // several permits
	Once       Kind = "once"         // done once, and remembered
	AtMostOnce Kind = "at most once" // not done again by itself
	Tx         Kind = "tx"           // done once, in a transaction of the store's database
	Job        Kind = "job"          // places reserved now and claimed from later
	NoClient   Kind = "bare"         // the store is spoken to without a client
)

// Key is a key that actors use.
type Key struct {
	Name      string
	Kind      Kind
	Permits   int
	Weight    int           // how many of them a lease takes; 0: one
	Retention time.Duration // of records
}

// Program is a process in which actors run.
type Program interface {
	// Gate returns when the process is not stopped, and reports whether it lives.
	Gate() bool
	// Rest waits for d, and while the process is stopped. It reports whether the actor should continue.
	Rest(ctx context.Context, d time.Duration) bool
	// Calm reports whether the faults are over.
	Calm() bool
	// Note writes an event to the history.
	Note(history.Event)
	// Next returns a text that is new in the run.
	Next() string
	// Crash sometimes ends the process, as a crash at this place would.
	Crash(where string)
	// Freeze sometimes stops the process for longer than its leases last, and reports whether it did.
	Freeze(key string) bool
	// Write writes to the fenced resource of a key with a fence.
	Write(key string, fence uint64)
	// Lost notes that a lease is lost.
	Lost()
}

// Actor is one caller.
type Actor struct {
	*rand.Rand
	Program
	Client *dibs.Client
	Store  dibs.Store // that the client has, of history.Record

	// Transactor has the transactions of Tx, and Insert writes an effect in one of them. Without a
	// database they are nil.
	Transactor dibs.Transactor
	Insert     func(ctx context.Context, key, result string) error

	// TTL is how long leases last, and PlaceTTL how long places do at most.
	TTL, PlaceTTL time.Duration
	// Timeout bounds a call without a client.
	Timeout time.Duration
	// Patience is how long a caller without another limit waits. 0: until it has its turn.
	Patience time.Duration
	// Pushes says that the store pushes grants.
	Pushes bool
	// Step is how long a step of a section takes.
	Step func() time.Duration
	// Places are for any actor of the run to redeem.
	Places *Places
}

// Use uses a key in the way of its kind.
func (a *Actor) Use(ctx context.Context, k Key) {
	switch k.Kind {
	case Mutex, Pool:
		a.Lock(ctx, k)
	case Once, AtMostOnce, Tx:
		a.once(ctx, k)
	case Job:
		a.job(ctx, k)
	case NoClient:
		a.noClient(ctx, k)
	}
}

// Chance is true n times out of 100.
func (a *Actor) Chance(n int) bool { return a.IntN(100) < n }

// UpTo returns a duration below d, mostly a short one.
func (a *Actor) UpTo(d time.Duration) time.Duration {
	if a.IntN(3) > 0 {
		d /= 20
	}
	return 1 + a.below(d)
}

func (a *Actor) below(d time.Duration) time.Duration { return time.Duration(a.Int64N(int64(d))) }

// Impatience sometimes ends a context early.
func (a *Actor) Impatience(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.Chance(70) {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, a.UpTo(2*a.TTL))
}

// options returns how a key is acquired this time. try says that the caller does not wait.
func (a *Actor) options(k Key) (o *dibs.AcquireOptions, try bool) {
	o = &dibs.AcquireOptions{Permits: k.Permits, Wait: a.Patience}
	switch {
	case a.Chance(25):
		try, o.Wait = true, 0
	case a.Chance(50):
		o.Wait = a.UpTo(4 * a.TTL)
	}
	if a.Chance(20) {
		o.TTL = a.TTL / 2
	}
	if a.Chance(10) {
		o.StopTimeout = a.TTL / 8
	}
	o.Detach = a.Chance(30) // the section continues when its caller has gone away
	if k.Kind == Pool {
		if a.Chance(10) {
			o.Permits++
		}
		if a.Chance(30) {
			o.Weight = 1 + a.IntN(o.Permits)
		}
	}
	return o, try
}

// Lock acquires the key, works, and ends the lease in one of several ways.
func (a *Actor) Lock(ctx context.Context, k Key) {
	asking, cancel := a.Impatience(ctx)
	defer cancel()
	if a.Chance(5) {
		_, _ = a.Client.Held(asking, k.Name)
		return
	}
	o, try := a.options(k)
	acquire := a.Client.Acquire
	if try {
		acquire = a.Client.TryAcquire
	}
	lease, err := acquire(asking, k.Name, o)
	if alive := a.Gate(); err != nil || !alive {
		return
	}
	k.Permits, k.Weight = o.Permits, o.Weight
	a.Crash("before the section")
	a.Section(lease, k)
	a.settle(ctx, lease, k)
}

// Several acquires several locks together.
func (a *Actor) Several(ctx context.Context, names []string) {
	asking, cancel := a.Impatience(ctx)
	defer cancel()
	all, err := a.Client.AcquireAll(asking, names, &dibs.AcquireOptions{Wait: a.Patience})
	if alive := a.Gate(); err != nil || !alive {
		return
	}
	for _, name := range names {
		a.Section(all.Lease(name), Key{Name: name, Kind: Mutex, Permits: 1})
	}
	if a.Gate() {
		_ = all.Release()
	}
}

// settle ends a lease, and reports whether it ended cleanly. If an end failed and the lease is
// still trusted, the actor works on under it.
func (a *Actor) settle(ctx context.Context, lease *dibs.Lease, k Key) bool {
	if !a.Gate() {
		return false
	}
	a.Crash("before the release")
	var failed bool
	switch n := a.IntN(100); {
	case n < 8:
		failed = lease.Abandon(ctx) != nil
	case n < 16:
		failed = lease.Undo(ctx) != nil
	default:
		return lease.Release() == nil
	}
	if failed && a.Gate() && lease.Err() == nil {
		a.Section(lease, k)
	}
	// It does nothing if the lease is settled by now. What was abandoned or undone did not end cleanly.
	return lease.Release() == nil && failed
}

// Section is the work under a lease: it takes some time, writes with its fence, and saves some
// progress. Mostly it looks first whether it still holds the lease; sometimes it does not, like a
// holder that was stopped after it looked.
func (a *Actor) Section(lease *dibs.Lease, k Key) {
	here := history.Event{
		Kind: history.Enter, Key: k.Name, Token: history.Token(a.Store, lease.ID()), Fence: lease.Fence(), Permits: k.Permits, Weight: k.Weight,
	}
	a.Note(here)
	ctx := lease.Context()
	for range a.IntN(4) {
		if k.Permits == 1 && (ctx.Err() == nil || a.Chance(30)) {
			a.Write(k.Name, here.Fence)
		}
		a.Crash("in the section")
		if a.Freeze(k.Name) {
			// The pause that fences are for: between the look at the lease and the write.
			a.Write(k.Name, here.Fence)
		}
		if !a.Rest(ctx, a.Step()) {
			break
		}
		if a.Chance(30) {
			_ = lease.Save(ctx, []byte(a.Next()))
		}
		if !a.Gate() || lease.Err() != nil {
			break
		}
	}
	if !a.Gate() {
		return
	}
	here.Kind, here.Error = history.Leave, whyOver(lease)
	a.Note(here)
	if here.Error == history.Lost {
		a.Lost()
		if k.Permits == 1 {
			a.Write(k.Name, here.Fence) // the late write, on purpose
		}
	}
}

// whyOver returns why the lease's section must end, or "".
func whyOver(lease *dibs.Lease) string {
	err := lease.Err()
	switch {
	case err == nil:
		return ""
	case errors.Is(err, dibs.ErrLost):
		return history.Lost
	}
	return err.Error()
}

// Places are reserved places, for any actor to redeem.
type Places struct {
	mu     sync.Mutex
	places []dibs.Place
	closed bool
	kept   bool
}

// Close takes all places away. None is offered any more.
func (p *Places) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.places, p.closed = nil, true
}

// Keep notes that a client was closed before it could give a place up.
func (p *Places) Keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = true
}

// Kept reports whether a place was reserved so late that it stands until it runs out.
func (p *Places) Kept() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept
}

// offer leaves a place for any actor to redeem, and reports whether it did.
func (p *Places) offer(place dibs.Place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.places = append(p.places, place)
	}
	return !p.closed
}

// take takes an offered place.
func (p *Places) take(n int) (place dibs.Place, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.places) == 0 {
		return place, false
	}
	i := n % len(p.places)
	place = p.places[i]
	p.places = append(p.places[:i:i], p.places[i+1:]...)
	return place, true
}

// job reserves a place, or claims from a reserved one.
func (a *Actor) job(ctx context.Context, k Key) {
	asking, cancel := a.Impatience(ctx)
	defer cancel()
	places := &dibs.PlaceOptions{}
	if a.Chance(50) {
		places.Grace = a.TTL / 2
	}
	if a.Calm() || a.Chance(20) {
		a.Lock(ctx, k)
		return
	}
	if a.Chance(50) {
		p, _, err := a.Client.Reserve(asking, k.Name, a.PlaceTTL, places)
		if a.Gate(); err == nil {
			a.Crash("in its place")
			a.offer(p)
		}
		return
	}
	p, ok := a.Places.take(a.IntN(8))
	switch {
	case !ok:
		return
	case a.Chance(10):
		_, _ = a.Client.PlaceStatus(asking, p)
		a.offer(p)
		return
	case a.Chance(5):
		_ = a.Client.CancelPlace(ctx, p)
		return
	case a.Chance(15):
		_, _ = a.Client.Prolong(asking, p, a.PlaceTTL, places)
		a.offer(p)
		return
	}
	if a.Chance(5) {
		a.offer(p) // delivered twice
	}
	acquire, try := a.options(k)
	o := &dibs.RedeemOptions{AcquireOptions: *acquire, Grace: places.Grace}
	redeem := a.Client.Redeem
	if try {
		redeem = a.Client.TryRedeem
	}
	for {
		lease, err := redeem(asking, p, o)
		alive := a.Gate()
		if err != nil {
			if !errors.Is(err, dibs.ErrClosed) {
				a.offer(p)
			}
			return
		}
		if !alive {
			return
		}
		job := Key{Name: p.Key.Name, Kind: Job, Permits: 1}
		a.Section(lease, job)
		if a.settle(ctx, lease, job) {
			return
		}
		if a.Chance(30) {
			a.offer(p) // delivered again
			return
		}
		redeem, o.Wait = a.Client.TryRedeem, 0
	}
}

// offer leaves a place for any actor to redeem, or gives it up at the end.
func (a *Actor) offer(p dibs.Place) {
	if a.Places.offer(p) {
		return
	}
	if err := a.Client.CancelPlace(context.Background(), p); errors.Is(err, dibs.ErrClosed) {
		a.Places.Keep()
	}
}
