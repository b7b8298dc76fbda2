package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/casstore"
)

// Clockless is a world without a right clock: processes use a casstore, each wall clock reads a
// random time at each call, and monotonic clocks run at different speeds.
type Clockless struct {
	// Clock, if not nil, makes the clock of a process. monotonic is the process's.
	Clock func(kv casstore.KV, o *casstore.RegisterOptions) casstore.Clock
	// LateRequests makes 80 of 1,000 requests late, and no answers. Otherwise the seed says what is
	// late. A state that a late request asked for may have become current long after the request
	// was sent.
	LateRequests bool
}

// Section is one use of a key by one holder that trusts its lease.
type Section struct {
	Key      string
	From, To time.Duration // real time
	Fence    uint64
	Process  int
}

// ClocklessResult is what happened in a Clockless world.
type ClocklessResult struct {
	Seed     uint64
	Sections []Section
	// Left is what was still held or waited for after all clients were closed and all leases of
	// dead holders were over. It should be empty.
	Left []string
	// Late is for how many ticks the key of a dead holder stayed taken after the TTL, for the
	// process that waited for it. The TTL counts as long as the slowest clock takes for it, and
	// each tick loses a call.
	Late float64
}

// Slowest and Fastest are the speeds of monotonic clocks.
const (
	Slowest = 0.95
	Fastest = 1.05
)

// clockless is one simulation.
type clockless struct {
	o       *Clockless
	seed    uint64
	began   time.Time
	kv      casstore.Memory
	ttl     time.Duration
	tick    time.Duration
	slow    int // out of 1,000 calls
	lost    int
	ahead   int // out of 100 slow calls: the request is late, and not the answer
	flights sync.WaitGroup

	mu       sync.Mutex
	calm     bool
	starts   uint64
	sections []Section
}

// Run runs the world of a seed, in a bubble of testing/synctest.
func (o *Clockless) Run(seed uint64) *ClocklessResult {
	r := rand.New(rand.NewPCG(seed, 1))
	w := &clockless{o: o, seed: seed, began: time.Now()}
	w.ttl = pick(r, 200*time.Millisecond, 300*time.Millisecond, time.Second)
	w.tick = w.ttl / pick(r, time.Duration(2), 5, 10)
	w.slow, w.lost, w.ahead = pick(r, 0, 30, 80, 150), pick(r, 0, 10, 50), pick(r, 50, 100)
	if o.LateRequests {
		w.slow, w.lost, w.ahead = 80, 0, 100
	}
	end := 10*w.ttl + rand64(r, 20*w.ttl)
	keys := pick(r, 1, 1, 2)
	var all sync.WaitGroup
	for n := range 2 + r.IntN(4) {
		r := rand.New(rand.NewPCG(seed, uint64(n+2)))
		all.Go(func() {
			for w.now() < end {
				p := w.start(r, n+1)
				if p == nil {
					continue
				}
				var workers sync.WaitGroup
				dies := w.now() + w.ttl/4 + rand64(r, 6*w.ttl)
				for range 1 + r.IntN(2) {
					r := rand.New(rand.NewPCG(r.Uint64(), 0))
					workers.Go(func() { p.work(r, keys, min(dies, end)) })
				}
				workers.Wait()
				p.stop(r.IntN(2) == 0 || p.link.isCut())
				time.Sleep(rand64(r, pick(r, w.ttl/10, w.ttl/10, 3*w.ttl)))
			}
		})
	}
	all.Wait()
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	time.Sleep(2 * w.ttl)
	result := &ClocklessResult{Seed: seed}
	result.Late = w.deadHolder(r)
	time.Sleep(2 * w.ttl)
	result.Left = w.left(r)
	w.flights.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	result.Sections = w.sections
	return result
}

func (w *clockless) now() time.Duration { return time.Since(w.began) }

func (w *clockless) healed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

// longestTrip is how long a call of the engine takes at most when nothing is wrong.
const longestTrip = 2 * time.Millisecond

// host is one process.
type host struct {
	world  *clockless
	number int
	speed  float64
	store  *casstore.Store
	client *dibs.Client
	link   *kvLink
	death  context.Context
	die    context.CancelFunc
}

// start starts a process, or returns nil if the network was too bad for it.
func (w *clockless) start(r *rand.Rand, number int) *host {
	w.mu.Lock()
	w.starts++
	start := w.starts
	w.mu.Unlock()
	p := &host{world: w, number: number, speed: Slowest + (Fastest-Slowest)*pick(r, 0, 1, r.Float64())}
	p.death, p.die = context.WithCancel(context.Background())
	p.link = &kvLink{host: p, Rand: rand.New(rand.NewPCG(w.seed, start<<32))}
	began, offset, wall := time.Now(), rand64(r, 1000*time.Hour), rand.New(rand.NewPCG(r.Uint64(), 0))
	var mu sync.Mutex
	o := &casstore.RegisterOptions{
		Tick: w.tick,
		Monotonic: func() time.Duration {
			return offset + time.Duration(float64(time.Since(began))*p.speed)
		},
		Wall: func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return time.Unix(wall.Int64N(4e9), 0)
		},
	}
	var clock casstore.Clock = casstore.NewRegister(p.link, o)
	if w.o.Clock != nil {
		clock = w.o.Clock(p.link, o)
	}
	ctx, cancel := context.WithTimeout(p.death, 5*time.Second)
	defer cancel()
	s, err := casstore.Open(ctx, p.link, &casstore.Options{Tick: w.tick, PruneEvery: -1, Clock: clock})
	if err != nil {
		p.die()
		return nil
	}
	p.store = s
	p.client, err = dibs.New(&spedStore{s, p.speed}, &dibs.Options{TTL: w.ttl, Timeout: 4 * w.ttl, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err) // the options are wrong
	}
	return p
}

// stop ends the process in order, or as a crash does.
func (p *host) stop(crashes bool) {
	if crashes {
		p.die()
	}
	_ = p.client.Close() // a crashed process gives nothing back
	_ = p.store.Close()
	p.die()
}

// work uses the keys until the process dies.
func (p *host) work(r *rand.Rand, keys int, dies time.Duration) {
	w := p.world
	impatient := r.IntN(3) == 0 // it asks again and again instead of waiting
	for w.now() < dies && !p.link.isCut() {
		rest := pick(r, w.ttl/20, w.ttl/2)
		if impatient {
			rest = w.ttl / 40
		}
		time.Sleep(rand64(r, rest))
		ctx, cancel := context.WithTimeout(p.death, max(dies-w.now(), 1))
		p.use(ctx, r, fmt.Sprint("k", r.IntN(keys)), impatient, dies)
		cancel()
	}
}

// use acquires a key and holds it for a while.
func (p *host) use(ctx context.Context, r *rand.Rand, key string, impatient bool, dies time.Duration) {
	w := p.world
	o := &dibs.AcquireOptions{StopTimeout: w.ttl / 10}
	if !impatient && r.IntN(8) > 0 {
		o.Wait = rand64(r, 5*w.ttl)
	}
	acquire := p.client.Acquire
	if o.Wait == 0 {
		acquire = p.client.TryAcquire
	}
	lease, err := acquire(ctx, key, o)
	if err != nil {
		return
	}
	x := Section{Key: key, From: w.now(), Fence: lease.Fence(), Process: p.number}
	holds := min(rand64(r, pick(r, w.ttl/10, 4*w.ttl)), max(dies-w.now(), 0))
	if r.IntN(4) == 0 { // it cannot renew, and works for as long as it trusts its lease
		p.link.cut()
		holds = 2 * w.ttl
	}
	hold := time.NewTimer(holds)
	select {
	case <-hold.C:
	case <-lease.Context().Done():
	}
	hold.Stop()
	x.To = w.now()
	w.mu.Lock()
	w.sections = append(w.sections, x)
	w.mu.Unlock()
	if w.now() < dies && r.IntN(4) > 0 {
		_ = lease.Release()
	}
}

// deadHolder returns by how many ticks more than its TTL the key of a dead holder stays taken.
func (w *clockless) deadHolder(r *rand.Rand) float64 {
	holder, waiter := w.start(r, 8), w.start(r, 9)
	if holder == nil || waiter == nil {
		return -1
	}
	defer waiter.stop(false)
	ctx := context.Background()
	if _, err := holder.client.TryAcquire(ctx, "dead", &dibs.AcquireOptions{StopTimeout: w.ttl / 10}); err != nil {
		return -1
	}
	held := w.now()
	granted := make(chan time.Duration, 1)
	w.flights.Go(func() {
		lease, err := waiter.client.Acquire(ctx, "dead", &dibs.AcquireOptions{Wait: 100 * w.ttl, StopTimeout: w.ttl / 10})
		granted <- w.now()
		if err == nil {
			_ = lease.Release()
		}
	})
	time.Sleep(rand64(r, w.ttl/4)) // it has not renewed its lease
	holder.stop(true)
	most := time.Duration(float64(w.ttl) * Fastest / Slowest * (1 + float64(longestTrip)/float64(w.tick)))
	return float64(<-granted-held-most) / float64(w.tick)
}

// left returns what is still held or waited for.
func (w *clockless) left(r *rand.Rand) (left []string) {
	p := w.start(r, 10)
	if p == nil {
		return []string{"no process starts"}
	}
	defer p.stop(false)
	// The store's time passes while a process uses the store. A place of a dead waiter lasts for
	// some seconds.
	ctx := context.Background()
	for range 20 {
		for _, err := range p.store.List(ctx, store.Query{}) {
			if err != nil {
				return []string{err.Error()}
			}
		}
		time.Sleep(time.Second)
	}
	for e, err := range p.store.List(ctx, store.Query{}) {
		switch {
		case err != nil:
			left = append(left, err.Error())
		case e.Condition == store.ConditionHeld, e.Condition == store.ConditionWaiting:
			left = append(left, fmt.Sprintf("%s is %s: %+v", e.Key.Name, e.Condition, e.Runs))
		}
	}
	return left
}

// spedStore makes the client of a process have its clock, which runs at that speed: what is a second
// for the client is more or less than a second for all others.
type spedStore struct {
	*casstore.Store
	speed float64
}

func (s *spedStore) by(d time.Duration) time.Duration { return time.Duration(float64(d) * s.speed) }

// Claim implements dibs.Store.
func (s *spedStore) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	own := make([]store.Claim, len(claims))
	for i, c := range claims {
		c.TTL, c.PlaceTTL = s.by(c.TTL), s.by(c.PlaceTTL)
		own[i] = c
	}
	return s.Store.Claim(ctx, own, answers)
}

// Renew implements dibs.Store.
func (s *spedStore) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	own := make([]store.Renewal, len(renewals))
	for i, r := range renewals {
		r.TTL = s.by(r.TTL)
		own[i] = r
	}
	return s.Store.Renew(ctx, own, errs)
}

// kvLink is a process's connection to the engine. Requests and answers are late, and get lost.
type kvLink struct {
	host *host
	gone atomic.Bool
	mu   sync.Mutex
	*rand.Rand
}

// cut has all requests lost from now on.
func (l *kvLink) cut()        { l.gone.Store(true) }
func (l *kvLink) isCut() bool { return l.gone.Load() }

// call makes a call, and waits for its answer until ctx ends or the process dies. The request may
// arrive after that.
func (l *kvLink) call(ctx context.Context, do func()) error {
	w := l.host.world
	if l.host.death.Err() != nil {
		return errReset
	}
	l.mu.Lock()
	out, back := 1+rand64(l.Rand, longestTrip/2), 1+rand64(l.Rand, longestTrip/2)
	outLost, backLost := false, false
	if !w.healed() {
		if l.IntN(1000) < w.slow {
			if d := rand64(l.Rand, w.ttl*3/2); l.IntN(100) < w.ahead {
				out += d
			} else {
				back += d
			}
		}
		if l.IntN(1000) < w.lost {
			outLost, backLost = l.IntN(2) == 0, true
		}
	}
	l.mu.Unlock()
	if l.isCut() {
		outLost, backLost = true, true
	}
	answered := make(chan error, 1)
	w.flights.Go(func() {
		time.Sleep(out)
		if !outLost {
			do()
		}
		time.Sleep(back)
		if backLost {
			answered <- errReset
		} else {
			answered <- nil
		}
	})
	select {
	case err := <-answered:
		return errors.Join(err, l.host.death.Err())
	case <-l.host.death.Done():
		return errReset
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answer is what a call of a KV returns.
type answer struct {
	value   []byte
	version string
	names   []string
	err     error
}

func (l *kvLink) ask(ctx context.Context, do func() answer) (a answer, err error) {
	arrived := make(chan answer, 1)
	if err := l.call(ctx, func() { arrived <- do() }); err != nil {
		return a, err
	}
	a = <-arrived
	return a, a.err
}

// Get implements casstore.KV.
func (l *kvLink) Get(ctx context.Context, name string) ([]byte, string, error) {
	a, err := l.ask(ctx, func() (a answer) {
		a.value, a.version, a.err = l.host.world.kv.Get(context.Background(), name)
		return a
	})
	return a.value, a.version, err
}

// Put implements casstore.KV.
func (l *kvLink) Put(ctx context.Context, name string, value []byte, version string) (string, error) {
	a, err := l.ask(ctx, func() (a answer) {
		a.version, a.err = l.host.world.kv.Put(context.Background(), name, value, version)
		return a
	})
	return a.version, err
}

// Delete implements casstore.KV.
func (l *kvLink) Delete(ctx context.Context, name, version string) error {
	_, err := l.ask(ctx, func() answer { return answer{err: l.host.world.kv.Delete(context.Background(), name, version)} })
	return err
}

// List implements casstore.KV.
func (l *kvLink) List(ctx context.Context, prefix, after string, limit int) ([]string, error) {
	a, err := l.ask(ctx, func() (a answer) {
		a.names, a.err = l.host.world.kv.List(context.Background(), prefix, after, limit)
		return a
	})
	return a.names, err
}
