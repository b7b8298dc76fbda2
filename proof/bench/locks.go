package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/torture"
)

// locker is a key's lock: what is the same for dibs and its peers. It waits for its turn.
type locker = torture.Locker

// The names of what is measured on more than one server.
const (
	ours      = "dibs"
	floorName = "raw floor"
)

// candidates are a server and all clients that are measured on it. They end with their scope.
type candidates struct {
	*servertest.Scope
	lockers map[string][]locker // by name, one for each process that there would be
	clients []*dibs.Client      // of ours

	redis   *servertest.RedisServer // on Redis
	rueidis rueidis.Client          // of dibs and the floor on Redis
	api     *server                 // dibs serve
	socket  string                  // on which it accepts, too
}

// opener starts a server and its candidates.
type opener func(context.Context, config, *candidates)

// with returns a comparison on candidates, which end with it.
func with(open opener, do func(context.Context, config, *candidates) figure) func(context.Context, config) figure {
	return func(ctx context.Context, c config) figure {
		b := &candidates{Scope: servertest.NewScope(), lockers: map[string][]locker{}}
		defer b.Close()
		open(ctx, c, b)
		return do(ctx, c, b)
	}
}

// alone is the opener of a comparison that starts its servers itself.
func alone(context.Context, config, *candidates) {}

// client returns a dibs client on a store. Both end with the candidates.
func (b *candidates) client(store dibs.Store, closeStore func() error, o *dibs.Options) *dibs.Client {
	b.Cleanup(func() { _ = closeStore() })
	client := get(dibs.New(store, o))
	b.Cleanup(func() { _ = client.Close() })
	return client
}

// enter adds a dibs client of its own on a store.
func (b *candidates) enter(store dibs.Store, closeStore func() error) {
	client := b.client(store, closeStore, &dibs.Options{TTL: lockTTL})
	b.clients = append(b.clients, client)
	b.lockers[ours] = append(b.lockers[ours], byClient(client))
}

const lockTTL = 30 * time.Second

// byClient is a lock by a dibs client.
func byClient(c *dibs.Client) locker {
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		lease, err := c.Acquire(ctx, key, nil)
		if err != nil {
			return nil, err
		}
		return &torture.Held{Unlock: lease.Release}, nil
	})
}

// under runs a section under a lock.
func under(ctx context.Context, l locker, key string, section func()) error {
	held, err := l.Lock(ctx, key)
	if err != nil {
		return err
	}
	section()
	return held.Unlock()
}

// stuck is how long a measurement may take longer than it should.
const stuck = time.Minute

// lockRate lets goroutines take and release keys of their own for d, and
// returns how often they did a second.
func lockRate(ctx context.Context, name string, l locker, goroutines int, d time.Duration) float64 {
	return rate(ctx, name, goroutines, d, func(ctx context.Context, g, i int) error {
		return under(ctx, l, fmt.Sprintf("goroutine %d, cycle %d", g, i), func() {})
	})
}

// rate lets goroutines repeat an action for d, and returns how often they did per second. Each
// call gets the goroutine's number and the count of its actions. A stuck action ends with its
// context.
func rate(ctx context.Context, name string, goroutines int, d time.Duration, do func(ctx context.Context, g, i int) error) float64 {
	ctx, cancel := context.WithTimeout(ctx, d+stuck)
	defer cancel()
	var n atomic.Int64
	start := time.Now()
	each(name, goroutines, func(failed *atomic.Pointer[error], g int) error {
		for i := 0; time.Since(start) < d && failed.Load() == nil; i++ {
			if err := do(ctx, g, i); err != nil {
				return err
			}
			n.Add(1)
		}
		return nil
	})
	return float64(n.Load()) / time.Since(start).Seconds()
}

// each runs a function in goroutines, and ends the comparison at an error of one of them.
func each(name string, goroutines int, do func(failed *atomic.Pointer[error], g int) error) {
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			if err := do(&failed, g); err != nil {
				err = fmt.Errorf("%s: %w", name, err)
				failed.Store(&err)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		must(*err)
	}
}

// rates measures all candidates with that many goroutines, which take and release keys of their
// own. It compares ours with the best of the others in each round. Those in beside are measured
// for orientation only.
func rates(open opener, goroutines int, others []string, beside ...string) func(context.Context, config) figure {
	return with(open, func(ctx context.Context, c config, b *candidates) figure {
		names := slices.Concat([]string{ours}, others, beside)
		var sides []side
		for _, name := range names {
			sides = append(sides, func(ctx context.Context, _ int) float64 {
				return lockRate(ctx, name, b.lockers[name][0], goroutines, c.round)
			})
		}
		got := c.turns(ctx, sides...)
		var f figure
		for round, v := range got[0] {
			best := 0.0
			for i := range others {
				best = max(best, got[i+1][round])
			}
			f.value = append(f.value, v/best)
		}
		var all []string
		for i, name := range names {
			all = append(all, fmt.Sprintf("%s %s", name, count(median(got[i]))))
		}
		f.detail = strings.Join(all, ", ") + " claim+settle/s"
		return f
	})
}

// times returns how long each claim and settlement takes of goroutines that take keys of their own.
func times(name string, l locker, goroutines int, d time.Duration) []time.Duration {
	took := make([][]time.Duration, goroutines)
	start := time.Now()
	each(name, goroutines, func(_ *atomic.Pointer[error], g int) error {
		for i := 0; time.Since(start) < d; i++ {
			began := time.Now()
			if err := under(context.Background(), l, fmt.Sprintf("goroutine %d, cycle %d", g, i), func() {}); err != nil {
				return err
			}
			took[g] = append(took[g], time.Since(began))
		}
		return nil
	})
	return slices.Concat(took...)
}

// tails measures the slowest hundredth of that many goroutines' claims and settlements.
func tails(open opener, goroutines int, beside ...string) func(context.Context, config) figure {
	return measureAll(open, beside, "ms", func(_ context.Context, c config, name string, lockers []locker, _ string) float64 {
		return quantile(times(name, lockers[0], goroutines, c.round), 0.99)
	})
}

// oneCaller measures how long one caller takes to claim a free key and to settle it, by the median.
func oneCaller(open opener, beside ...string) func(context.Context, config) figure {
	return measureAll(open, beside, "ms", func(_ context.Context, c config, name string, lockers []locker, _ string) float64 {
		return quantile(times(name, lockers[0], 1, c.round), 0.5)
	})
}

// contention is what happened while goroutines wanted one key.
type contention struct {
	grants []int           // by goroutine
	gaps   []time.Duration // from a release to the next section
}

// hold is how long each of the waiters holds the key: long enough that the one
// before has joined the queue again, so that the queue is measured and not the
// scheduler.
const hold = time.Millisecond

// contend lets goroutines take one key in turns for d, each holding it for a while. The
// goroutines are spread over the processes. The key must be new, because a peer may leave a key
// held that was waited for in vain.
func contend(ctx context.Context, name string, processes []locker, key string, waiters int, d time.Duration) contention {
	c := contention{grants: make([]int, waiters)}
	over, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var released time.Time // under the lock that is measured
	each(name, waiters, func(_ *atomic.Pointer[error], i int) error {
		for over.Err() == nil {
			err := under(over, processes[i%len(processes)], key, func() {
				if !released.IsZero() {
					c.gaps = append(c.gaps, time.Since(released))
				}
				c.grants[i]++
				time.Sleep(hold)
				released = time.Now()
			})
			if err != nil && over.Err() == nil {
				return err
			}
		}
		return nil
	})
	return c
}

// handOver measures all candidates with that many goroutines on one key, by the median hand-over.
func handOver(open opener, waiters int, beside []string) func(context.Context, config) figure {
	return measureAll(open, beside, "ms", func(ctx context.Context, c config, name string, lockers []locker, key string) float64 {
		return quantile(contend(ctx, name, lockers, key, waiters, 2*c.round).gaps, 0.5)
	})
}

// fairness measures how often the waiter with the most grants of 32 is granted, against the one
// with the fewest.
func fairness(open opener, beside []string) func(context.Context, config) figure {
	return measureAll(open, beside, "", func(ctx context.Context, c config, name string, lockers []locker, key string) float64 {
		grants := contend(ctx, name, lockers, key, 32, 4*c.round).grants
		return float64(slices.Max(grants)) / float64(max(slices.Min(grants), 1))
	})
}

// scripts returns how many scripts the Redis has run.
func (b *candidates) scripts() int {
	for line := range strings.Lines(get(b.redis.Do("INFO", "commandstats")).(string)) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			digits, _, _ := strings.Cut(rest, ",")
			return get(strconv.Atoi(digits))
		}
	}
	return 0
}

// redisRoundTrips counts, at the server, the scripts that a contended cycle takes.
var redisRoundTrips = with(openRedis, func(ctx context.Context, c config, b *candidates) figure {
	f := figure{detail: "scripts run by the server, 32 goroutines on one key"}
	for range min(c.rounds, 5) {
		before, total := b.scripts(), 0
		for _, n := range contend(ctx, ours, b.lockers[ours], "contended", 32, 2*c.round).grants {
			total += n
		}
		f.value = append(f.value, float64(b.scripts()-before)/float64(total))
	}
	return f
})

// redisReplay counts the scripts of a first request and of a replay.
var redisReplay = with(openRedis, func(ctx context.Context, c config, b *candidates) figure {
	first := 0
	var f figure
	for round := range c.rounds {
		once := func() int {
			before := b.scripts()
			get(dibs.Once(ctx, b.clients[0], "request "+strconv.Itoa(round), nil, func(context.Context) (string, error) { return "answer", nil }))
			return b.scripts() - before
		}
		first = max(first, once())
		f.value = append(f.value, float64(once()))
	}
	f.detail = fmt.Sprintf("a first request %d", first)
	return f
})

// errHeld is the error of a client that does not wait.
var errHeld = errors.New("a key is held that no other goroutine uses")

// uncontendedDo measures one goroutine that takes and releases one key.
var uncontendedDo = with(openMemory, func(ctx context.Context, c config, b *candidates) figure {
	nothing := func(context.Context) error { return nil }
	got := c.turns(ctx, func(ctx context.Context, _ int) float64 {
		n, start := 0, time.Now()
		for time.Since(start) < c.round {
			for range 1000 {
				must(b.clients[0].Do(ctx, "key", nothing))
			}
			n += 1000
		}
		return float64(time.Since(start).Microseconds()) / float64(n)
	})
	return figure{value: got[0], unit: "µs", detail: "one goroutine, one key, an empty section"}
})

// sqliteGroupCommit compares 64 goroutines that claim and settle keys of their
// own, sharing commits, with one that does the same one by one.
var sqliteGroupCommit = with(openSQLite, func(ctx context.Context, c config, b *candidates) figure {
	cycles := func(goroutines int) side {
		return func(ctx context.Context, _ int) float64 {
			return lockRate(ctx, ours, b.lockers[ours][0], goroutines, c.round)
		}
	}
	return interleave(ctx, c, "claim+settle/s, each on stable storage before it is answered", cycles(64), cycles(1))
})
