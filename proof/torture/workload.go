package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/store"
)

// How many keys there are of each kind. Few are hot, so that many meet at them; the
// cold ones are there to be met rarely.
const (
	hotKeys  = 3
	coldKeys = 150
	// permits of a key that has several.
	permits = 3
)

// lane is one of the goroutines of a worker. It does one action after the other.
type lane struct {
	*worker
	ctx   context.Context
	waits context.Context // of a Locker's callers
	r     *rand.Rand
}

// action is one kind of action of a lane.
type action struct {
	weight int
	do     func(*lane)
}

// actions are what lanes do, and how often.
var actions = []action{
	{20, (*lane).mutex},
	{8, (*lane).try},
	{4, (*lane).several},
	{8, (*lane).permitted},
	{20, (*lane).once},
	{5, (*lane).brief},
	{3, (*lane).atMostOnce},
	{10, (*lane).inTransaction},
	{8, (*lane).place},
	{10, (*lane).raw},
	{4, (*lane).look},
}

// work lets the lanes run while faults strike, and then acquires every key once more.
func (w *worker) work(ctx context.Context) {
	w.each(ctx, (*lane).run)
	if ctx.Err() == nil {
		w.sweep(ctx)
	}
}

// each runs the function in all lanes, and returns when it has returned in all of them.
func (w *worker) each(ctx context.Context, run func(*lane)) {
	var all sync.WaitGroup
	for i := range w.Lanes {
		all.Go(func() {
			run(&lane{worker: w, ctx: ctx, r: rand.New(rand.NewPCG(w.Seed, uint64(w.Process)<<40|uint64(w.Restarts)<<16|uint64(i)))})
		})
	}
	all.Wait()
}

// run does one action after the other while faults strike.
func (l *lane) run() {
	total := 0
	for _, d := range actions {
		total += d.weight
	}
	for !l.faultsEnded() && l.ctx.Err() == nil {
		n := l.r.IntN(total)
		for _, d := range actions {
			if n -= d.weight; n < 0 {
				d.do(l)
				break
			}
		}
		l.pause(time.Duration(l.r.ExpFloat64() * float64(l.Pause)))
	}
}

// faultsEnded reports whether no fault strikes any more.
func (w *worker) faultsEnded() bool {
	select {
	case <-w.recovery:
		return true
	default:
		return false
	}
}

// pause waits for d, but not after the last fault.
func (l *lane) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.recovery:
	case <-l.ctx.Done():
	}
}

// key picks a key of the kind, more often a hot one.
func (l *lane) key(kind string) string {
	if l.r.IntN(4) < 3 {
		return hotKey(kind, l.r.IntN(hotKeys))
	}
	return fmt.Sprintf("%s/cold/%d", kind, l.r.IntN(coldKeys))
}

func hotKey(kind string, i int) string { return fmt.Sprintf("%s/hot/%d", kind, i) }

// fresh picks a key of the kind that is new, or was new a short time ago. New keys come into use
// all the time.
func (l *lane) fresh(kind string) string {
	age := int64((history.Now() - l.Begin) / (40 * time.Millisecond))
	switch n := l.r.IntN(10); {
	case n < 6:
		age -= l.r.Int64N(4)
	case n < 9:
		age -= l.r.Int64N(50)
	default:
		age = l.r.Int64N(max(age, 1))
	}
	return fmt.Sprintf("%s/%d", kind, max(age, 0))
}

// odds is true one in n times.
func (l *lane) odds(n int) bool { return l.r.IntN(n) == 0 }

// upTo returns a duration below d.
func (l *lane) upTo(d time.Duration) time.Duration { return time.Duration(l.r.Int64N(int64(d))) }

// wait returns how long the lane waits for its turn: mostly long enough.
func (l *lane) wait() time.Duration {
	if l.odds(4) {
		return time.Millisecond + l.upTo(200*time.Millisecond)
	}
	return l.TTL + l.upTo(2*l.TTL)
}

// crash sometimes ends this process, as a crash at this place would.
func (l *lane) crash(where string) {
	if !l.Crash || !l.odds(crashOdds) {
		return
	}
	l.crashing.RLock()
	defer l.crashing.RUnlock()
	if !l.noCrash {
		l.out.send(message{Crash: where})
		die()
	}
}

// crashOdds is one in how many times a lane crashes where it can.
const crashOdds = 400

// impatient returns a context that sometimes ends soon, as that of a caller that gives up.
func (l *lane) impatient() (context.Context, context.CancelFunc) {
	if l.odds(12) {
		return context.WithTimeout(l.ctx, l.upTo(60*time.Millisecond))
	}
	return context.WithCancel(l.ctx)
}

// mutex acquires a key, and waits for its turn.
func (l *lane) mutex() {
	l.acquire(l.client.Acquire, l.key("mutex"), &dibs.AcquireOptions{Wait: l.wait()})
}

// try acquires a key if it is free.
func (l *lane) try() {
	l.acquire(l.client.TryAcquire, l.key("mutex"), &dibs.AcquireOptions{})
}

// permitted acquires one of several permits. Sometimes it takes more of them, or asks for
// another number of permits than others do.
func (l *lane) permitted() {
	o := &dibs.AcquireOptions{Permits: permits, Wait: l.wait()}
	if l.odds(12) {
		o.Permits++
	}
	if l.odds(4) {
		o.Weight = 1 + l.r.IntN(o.Permits)
	}
	l.acquire(l.client.Acquire, l.key("permits"), o)
}

// acquire acquires a key by Client.Acquire or Client.TryAcquire, works under it, and ends the
// lease.
func (l *lane) acquire(by func(context.Context, string, *dibs.AcquireOptions) (*dibs.Lease, error), key string, o *dibs.AcquireOptions) {
	ctx, cancel := l.impatient()
	defer cancel()
	o.Detach = true // the section goes on when its caller went away, as sections do
	lease, err := by(ctx, key, o)
	if err != nil {
		return
	}
	l.crash("before the section")
	l.section(lease, max(o.Permits, 1), max(o.Weight, 1))
	l.leave(lease)
}

// several acquires several keys together.
func (l *lane) several() {
	keys := []string{hotKey("mutex", l.r.IntN(hotKeys)), l.key("mutex"), l.key("mutex")}
	all, err := l.client.AcquireAll(l.ctx, keys, &dibs.AcquireOptions{Wait: l.wait()})
	if err != nil {
		return
	}
	for _, key := range keys[:1+l.r.IntN(2)] {
		l.section(all.Lease(key), 1, 1)
	}
	_ = all.Release()
}

// look asks about keys without acquiring them.
func (l *lane) look() {
	_, _ = l.client.Held(l.ctx, l.key("mutex"))
	_, _, _ = l.client.Record(l.ctx, l.fresh("once"))
}

// sweepLimit is how long a key may be out of reach after the last fault: the last lease runs
// out, and so does a pushed grant.
func (w *worker) sweepLimit() time.Duration { return w.TTL + store.PushedTTL + sweepSlack }

// sweepSlack is for connections that must be made again, for other workers that want the key,
// and for a machine that pauses.
const sweepSlack = 3 * time.Second

// sweep acquires every hot key once, and this worker's share of the others.
func (w *worker) sweep(ctx context.Context) {
	var keys []string
	for _, kind := range []string{"mutex", "permits", "place", "raw"} {
		for i := range hotKeys {
			keys = append(keys, hotKey(kind, i))
		}
		for i := w.Process; i < coldKeys; i += w.Processes {
			keys = append(keys, fmt.Sprintf("%s/cold/%d", kind, i))
		}
	}
	var all sync.WaitGroup
	var stuck atomic.Int64
	next := make(chan string)
	for range w.Lanes {
		all.Go(func() {
			for key := range next {
				if stuck.Load() < enough && !w.have(ctx, key) {
					stuck.Add(1)
				}
			}
		})
	}
	for _, key := range keys {
		next <- key
	}
	close(next)
	all.Wait()
	w.out.send(message{Swept: len(keys)})
}

// enough keys that are out of reach show the defect; each costs sweepLimit.
const enough = 5

// have acquires a key, releases it, and reports whether it could. If the store itself does not
// answer in time, it tries again, because this check is about the key.
func (w *worker) have(ctx context.Context, key string) bool {
	o := &dibs.AcquireOptions{Wait: w.sweepLimit()}
	if kindOf(key) == "permits" {
		o.Permits = permits
	}
	for start := time.Now(); ; {
		lease, err := w.client.Acquire(ctx, key, o)
		if err == nil {
			_ = lease.Release() // if it is not heard, it is done in the background
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if errors.Is(err, dibs.ErrHeld) && w.answers(ctx, key) || time.Since(start) > patience {
			w.out.send(message{Stuck: key + ": " + err.Error()})
			return false
		}
	}
}

// inTime is how long one call may take so that sweepLimit is long enough.
const inTime = 200 * time.Millisecond

// answers reports whether the store answers a question in time.
func (w *worker) answers(ctx context.Context, key string) bool {
	asked := time.Now()
	_, err := w.client.Held(ctx, key)
	return err == nil && time.Since(asked) < inTime
}
