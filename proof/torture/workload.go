package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/proof/workload"
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
	*workload.Actor
	ctx   context.Context
	waits context.Context // of a Locker's callers
}

// actions are what lanes do, and how often.
var actions = []struct {
	weight int
	do     func(*lane)
}{
	{28, func(l *lane) { l.Use(l.ctx, workload.Key{Name: l.key("mutex"), Kind: workload.Mutex, Permits: 1}) }},
	{4, func(l *lane) {
		l.Several(l.ctx, []string{hotKey("mutex", l.IntN(hotKeys)), l.key("mutex"), l.key("mutex")})
	}},
	{8, func(l *lane) {
		l.Use(l.ctx, workload.Key{Name: l.key("permits"), Kind: workload.Pool, Permits: permits})
	}},
	{20, func(l *lane) { l.Use(l.ctx, workload.Key{Name: l.fresh("once"), Kind: workload.Once, Retention: long}) }},
	{5, func(l *lane) {
		l.Use(l.ctx, workload.Key{Name: hotKey("brief", l.IntN(hotKeys)), Kind: workload.Once, Retention: l.TTL/2 + l.upTo(l.TTL/2)})
	}},
	{3, func(l *lane) {
		l.Use(l.ctx, workload.Key{Name: l.fresh("most"), Kind: workload.AtMostOnce, Retention: long})
	}},
	{10, func(l *lane) {
		kind := workload.Tx
		if l.tx == nil {
			kind = workload.Once
		}
		l.Use(l.ctx, workload.Key{Name: l.fresh("tx"), Kind: kind, Retention: long})
	}},
	{8, func(l *lane) { l.Use(l.ctx, workload.Key{Name: l.key("place"), Kind: workload.Job, Permits: 1}) }},
	{7, func(l *lane) {
		l.Use(l.ctx, workload.Key{Name: l.key("raw"), Kind: workload.NoClient, Permits: 1, Retention: l.TTL})
	}},
	{3, func(l *lane) {
		l.Use(l.ctx, workload.Key{Name: l.fresh("kept"), Kind: workload.NoClient, Permits: 1, Retention: long})
	}},
	{2, func(l *lane) { _, _, _ = l.client.Record(l.ctx, l.fresh("once")) }},
}

// long is a retention that outlasts every run.
const long = 24 * time.Hour

// work lets the lanes run while faults strike, and then acquires every key once more.
func (w *worker) work(ctx context.Context) {
	w.each(ctx, (*lane).run)
	w.places.Close()
	if ctx.Err() == nil {
		w.sweep(ctx)
	}
}

// each runs the function in all lanes, and returns when it has returned in all of them.
func (w *worker) each(ctx context.Context, run func(*lane)) {
	var all sync.WaitGroup
	for i := range w.Lanes {
		all.Go(func() { run(w.lane(ctx, i)) })
	}
	all.Wait()
}

func (w *worker) lane(ctx context.Context, i int) *lane {
	l := &lane{worker: w, ctx: ctx}
	l.Actor = &workload.Actor{
		Rand: rand.New(rand.NewPCG(w.Seed, uint64(w.Process)<<40|uint64(w.Restarts)<<16|uint64(i))), Program: l,
		Client: w.client, Store: w.store, Transactor: w.tx,
		TTL: w.task.TTL, PlaceTTL: w.task.TTL, Timeout: w.task.TTL, Pushes: true, Patience: 3 * w.task.TTL, Places: &w.places,
		Step: l.step,
		Insert: func(ctx context.Context, key, result string) error {
			return w.db.insert(history.Inside(ctx), w.Run, key, result)
		},
	}
	return l
}

// run does one action after the other while faults strike.
func (l *lane) run() {
	total := 0
	for _, d := range actions {
		total += d.weight
	}
	for !l.Calm() && l.ctx.Err() == nil {
		n := l.IntN(total)
		for _, d := range actions {
			if n -= d.weight; n < 0 {
				d.do(l)
				break
			}
		}
		l.Rest(l.ctx, time.Duration(l.ExpFloat64()*float64(l.task.Pause)))
	}
}

// Calm implements workload.Program.
func (w *worker) Calm() bool {
	select {
	case <-w.recovery:
		return true
	default:
		return false
	}
}

// Gate does nothing: the kernel stops a process.
func (w *worker) Gate() bool { return true }

// Rest waits for d, but not after the last fault.
func (w *worker) Rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-w.recovery:
	case <-ctx.Done():
	}
	return false
}

// Next implements workload.Program.
func (w *worker) Next() string {
	return fmt.Sprintf("%d.%d.%d", w.Process, w.Restarts, w.results.Add(1))
}

// step returns how long a step of a section takes: mostly milliseconds, and sometimes so long that the
// lease must be renewed.
func (l *lane) step() time.Duration {
	if l.odds(60) {
		return l.upTo(2 * l.TTL)
	}
	return time.Duration(l.ExpFloat64() * float64(3*time.Millisecond))
}

// key picks a key of the kind, more often a hot one.
func (l *lane) key(kind string) string {
	if l.IntN(4) < 3 {
		return hotKey(kind, l.IntN(hotKeys))
	}
	return fmt.Sprintf("%s/cold/%d", kind, l.IntN(coldKeys))
}

func hotKey(kind string, i int) string { return fmt.Sprintf("%s/hot/%d", kind, i) }

// fresh picks a key of the kind that is new, or was new a short time ago. New keys come into use
// all the time.
func (l *lane) fresh(kind string) string {
	age := int64((history.Now() - l.Begin) / (40 * time.Millisecond))
	switch n := l.IntN(10); {
	case n < 6:
		age -= l.Int64N(4)
	case n < 9:
		age -= l.Int64N(50)
	default:
		age = l.Int64N(max(age, 1))
	}
	return fmt.Sprintf("%s/%d", kind, max(age, 0))
}

// odds is true one in n times.
func (l *lane) odds(n int) bool { return l.IntN(n) == 0 }

// upTo returns a duration below d.
func (l *lane) upTo(d time.Duration) time.Duration { return time.Duration(l.Int64N(int64(d))) }

const (
	// crashOdds is one in how many times a lane crashes where it can. Under a lease it freezes one in
	// freezeOdds times, under a lock of a Locker, whose sections have more steps, one in lockFreezeOdds.
	crashOdds      = 400
	freezeOdds     = 60
	lockFreezeOdds = 150
)

// Crash sometimes ends this process, as a crash at this place would.
func (l *lane) Crash(where string) {
	if !l.task.Crash || !l.odds(crashOdds) {
		return
	}
	l.crashing.RLock()
	defer l.crashing.RUnlock()
	if !l.noCrash {
		l.out.send(message{Crash: where})
		die()
	}
}

// Freeze sometimes stops this process for longer than its lease lasts, so that another
// holder gets the key. It reports whether it did.
func (l *lane) Freeze(key string) bool {
	odds := freezeOdds
	if l.opened.Locker != nil {
		odds = lockFreezeOdds
	}
	if !l.task.Crash || !strings.HasPrefix(key, "mutex/hot/") || !l.odds(odds) {
		return false
	}
	l.crashing.RLock()
	defer l.crashing.RUnlock()
	if !l.noCrash {
		l.standStill(l.ctx)
	}
	return !l.noCrash
}

// sweepLimit is how long a key may be out of reach after the last fault: the last lease runs
// out, and so does a pushed grant.
func (w *worker) sweepLimit() time.Duration {
	return w.task.TTL + store.PushedTTL + slackOf(w.task.URL)
}

// sweepSlack is for connections that must be made again, for other workers that want the key,
// and for a machine that pauses.
const sweepSlack = 3 * time.Second

// slackOf is sweepSlack, and more for a store whose workers move the time, because a slow machine
// moves it late.
func slackOf(url string) time.Duration {
	if movesTime(url) {
		return time.Minute
	}
	return sweepSlack
}

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
	if strings.HasPrefix(key, "permits/") {
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
