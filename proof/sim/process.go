package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/proof/history"
)

// process is a program that uses the store. It can stand still, be parted from the
// store, and be killed and started again.
type process struct {
	world  *world
	number int

	mu     sync.Mutex
	life   *life
	still  time.Duration // until when it stands still
	parted time.Duration // until when it is cut off
	mute   bool          // cut off: what it sends is lost
	deaf   bool          // cut off: what is sent to it is lost
}

// life is one run of a process: some workers who share a client.
type life struct {
	process *process
	number  int
	client  *dibs.Client
	mutex   *jobs.Mutex // on the client
	store   dibs.Store  // what the client sees
	writer  *history.Writer
	end     context.CancelFunc
	work    sync.WaitGroup
	dead    bool // under the process's lock
}

func newProcess(w *world, number int) *process { return &process{world: w, number: number} }

// start begins a life.
func (p *process) start() {
	w := p.world
	l := &life{process: p}
	if p.life != nil {
		l.number = p.life.number + 1
	}
	store := newLink(l)
	if w.client != nil {
		store = w.client(store)
	}
	l.writer = w.tape.writer(p.number, l.number)
	l.store = &mortal{history.Record(store, l.writer, nil), l}
	client, err := dibs.New(l.store, &dibs.Options{TTL: w.plan.ttl, Timeout: w.plan.timeout})
	if err != nil {
		panic(err) // the options are wrong
	}
	l.client = client
	l.mutex = newMutex(l)
	ctx, end := context.WithCancel(context.Background())
	l.end = end
	p.mu.Lock()
	p.life = l
	p.mu.Unlock()
	for n := range w.plan.workers {
		l.work.Go(func() { newWorker(l, n).run(ctx) })
	}
}

// stop ends the process in an orderly way, and returns what its client says of that.
func (p *process) stop() error {
	l := p.life
	l.end()
	l.mutex.Close()
	err := l.client.Close()
	l.work.Wait()
	if err != nil {
		return fmt.Errorf("process %d: %w", p.number, err)
	}
	return nil
}

// fate is what happens to the process while there are faults.
func (p *process) fate() {
	w := p.world
	r := w.plan.among(1, uint64(p.number))
	for {
		time.Sleep(200*time.Millisecond + rand64(r, 2*time.Second))
		if w.now() > w.plan.faulty+time.Second {
			return
		}
		switch n := r.IntN(100); {
		case n < w.plan.pauses:
			p.pause(w.plan.ttl/4 + rand64(r, 2*w.plan.ttl))
		case n < w.plan.pauses+w.plan.kills:
			p.kill(r)
		case n < w.plan.pauses+w.plan.kills+w.plan.parts:
			p.part(r)
		}
	}
}

// pause lets the process stand still for d.
func (p *process) pause(d time.Duration) {
	w := p.world
	since := w.now()
	p.mu.Lock()
	p.still = since + d
	number := p.life.number
	p.mu.Unlock()
	time.Sleep(d)
	w.tape.note(history.Event{Kind: history.Stopped, Process: p.number, Life: number, Call: since})
	w.tape.fault("pause", p.number)
}

// gate returns when the process does not stand still, and a moment later, so that not
// all wake at once. It reports whether the process lives.
func (l *life) gate(moment time.Duration) bool {
	p := l.process
	for {
		p.mu.Lock()
		dead, wait := l.dead, p.still-p.world.now()
		p.mu.Unlock()
		if dead || wait <= 0 {
			return !dead
		}
		time.Sleep(wait + moment)
	}
}

// kill ends the process as a crash does, and starts it again after a while.
func (p *process) kill(r *rand.Rand) {
	w := p.world
	p.mu.Lock()
	l := p.life
	l.dead = true
	p.mu.Unlock()
	w.tape.note(history.Event{Kind: history.Killed, Process: p.number, Life: l.number})
	w.tape.fault("kill", p.number)
	l.end()
	// What is left of it runs out of the way: it is heard of no more.
	w.flights.Go(func() {
		l.mutex.Close()
		_ = l.client.Close()
		l.work.Wait()
	})
	time.Sleep(time.Millisecond + rand64(r, w.plan.ttl))
	p.start()
}

// part cuts the process off for a while, both ways or one.
func (p *process) part(r *rand.Rand) {
	w := p.world
	d := w.plan.ttl/4 + rand64(r, 2*w.plan.ttl)
	way := r.IntN(3)
	p.mu.Lock()
	p.parted = w.now() + d
	p.mute, p.deaf = way != 1, way != 0
	p.mu.Unlock()
	w.tape.fault([...]string{"mute", "deaf", "parted"}[way], p.number)
	time.Sleep(d)
}

// cut reports which ways the process is cut off.
func (p *process) cut() (mute, deaf bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.world.now() >= p.parted {
		return false, false
	}
	return p.mute, p.deaf
}

func (l *life) isDead() bool {
	l.process.mu.Lock()
	defer l.process.mu.Unlock()
	return l.dead
}

// token returns the token of a lease of this life, as events have it.
func (l *life) token(lease *dibs.Lease) string {
	return history.Token(l.store.(*mortal).recorded, lease.ID())
}
