package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// never is how often stores in tests look for what has ended, unless that is what is
// counted.
const never = -1 * time.Second

// fastest is how much more often a process polls at first (mysqlstore/poll.go: fastPoll and
// slowPoll).
const fastest = 8

// busy is how much less may be counted on a machine that is busy, of what many do at the
// same time: calls that come while one is under way share the next, and polls come later.
const busy = 4

// TestModel checks the models against real stores: what a server counts by itself when
// real clients use it has to be what the model says.
func TestModel(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) *backend{
		"Redis": newRedis, "PostgreSQL": newPostgres, "MariaDB": newMariaDB, "SQLite": newSQLite,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compare(t, start, []check{
				{"verbs", (*backend).verbs},
				{"sweep", (*backend).sweep},
				{"renewals", (*backend).renewals},
				{"requests", (*backend).requests},
				{"jobs", (*backend).jobs},
				{"waiting", (*backend).waiting},
				{"processes", (*backend).processes},
				{"long queue", (*backend).longQueue},
				{"kept", (*backend).kept},
			})
		})
	}
}

// verbs checks what calls cost by how many elements they have, and how long keys and
// records are.
func (b *backend) verbs(t *testing.T) {
	s := b.open(t, never)
	for _, call := range []struct {
		n     int
		shape Shape
	}{
		{1, shape}, // to get to know the server
		{1, shape},
		{8, shape},
		{64, shape},
		{256, shape},
		{1, large},
		{64, large},
	} {
		n, shape := call.n, call.shape
		rounds := max(2, 16/n)
		b.calls++
		var all, kept []*batch
		for round := range rounds {
			all = append(all, newBatch(fmt.Sprintf("v%d-%d", b.calls, round), n))
			kept = append(kept, newBatch(fmt.Sprintf("k%d-%d", b.calls, round), n))
		}
		for _, x := range slices.Concat(all, kept) {
			x.lengthen(shape)
		}
		each := func(of []*batch, f func(x *batch)) counts {
			return b.measure(t, func() {
				for _, x := range of {
					f(x)
				}
			})
		}
		compare := func(verb string, got counts, want Cost) {
			if b.calls > 1 {
				what := fmt.Sprintf("%s of %d, keys of %d bytes", verb, n, shape.Key)
				b.check(t, what, got, want.Times(float64(rounds)), Cost{Log: float64(500 + 50*rounds + 10*n*rounds)})
			}
		}
		compare("claim", each(all, func(x *batch) { x.claim(t, s, dibs.Granted) }), b.model.Claim(shape, n))
		compare("renewal", each(all, func(x *batch) { x.renew(t, s) }), b.model.Renew(shape, n))
		compare("release", each(all, func(x *batch) { x.release(t, s) }), b.model.Release(shape, n))
		each(kept, func(x *batch) { x.claim(t, s, dibs.Granted) })
		compare("record", each(kept, func(x *batch) { x.keep(t, s, shape.Data, time.Hour) }), b.model.Keep(shape, n))
		compare("replay", each(kept, func(x *batch) { x.replays(); x.claim(t, s, dibs.Done) }), b.model.Replay(shape, n))
	}
	// One by one: who waits is not in one call with others.
	held := newBatch("held", 1)
	held.claim(t, s, dibs.Granted)
	for _, n := range []int{1, 16} {
		var all []*batch
		for i := range n {
			all = append(all, newBatch(fmt.Sprintf("w%d-%d", n, i), 1))
			all[i].wait(held.claims[0].Key, dibs.Queue)
		}
		wait := func() {
			for _, x := range all {
				x.claim(t, s, dibs.Held)
			}
		}
		start := time.Now()
		first, again := b.measure(t, wait), b.measure(t, wait)
		polls := b.model.Polls(shape, n, 0).Times(fastest * time.Since(start).Seconds())
		if n > 1 {
			join, ask := b.model.Join(shape, n/2).Times(float64(n)), b.model.Ask(shape, n).Times(float64(n))
			b.between(t, "places that are taken", first, join, join.Plus(polls), Cost{})
			b.between(t, "places that are kept", again, ask, ask.Plus(polls), Cost{})
		}
	}
}

// renewals checks what leases cost that are held.
func (b *backend) renewals(t *testing.T) {
	const ttl, window = 1500 * time.Millisecond, 1500 * time.Millisecond
	for _, leases := range []int{1, 100} {
		c := client(t, b.open(t, never), &dibs.Options{TTL: ttl})
		gap := time.NewTicker(ttl / renewEach / time.Duration(leases))
		defer gap.Stop()
		var held []*dibs.Lease
		for i := range leases {
			lease, err := c.Acquire(t.Context(), keyName(fmt.Sprintf("held %d", leases), i), nil)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, lease)
			<-gap.C
		}
		pass(ttl / renewEach)
		var took time.Duration
		got := b.measure(t, func() { took = pass(window) })
		calls, each := Renewals(leases, ttl)
		want := b.model.Renew(shape, max(1, int(each+0.5))).Times(calls * took.Seconds())
		one := b.model.Renew(shape, max(1, int(each+0.5)))                                         // more or less, by when one looks
		least := b.model.Renew(shape, max(1, int(busy*each))).Times(calls / busy * took.Seconds()) // more of them come along
		b.between(t, fmt.Sprintf("%d leases for %v", leases, window), got, least, want, one.Plus(Cost{Log: 2000}))
		for _, lease := range held {
			if err := lease.Release(); errors.Is(err, dibs.ErrLost) {
				b.miss("a lease was lost meanwhile: %v", err)
			} else if err != nil {
				t.Error(err)
			}
		}
	}
}

// requests checks what requests cost of which some were made before.
func (b *backend) requests(t *testing.T) {
	c := client(t, b.open(t, never), &dibs.Options{Label: "scale"})
	once := func(i int) {
		_, err := dibs.Once(t.Context(), c, keyName("request", i), nil, func(context.Context) (string, error) {
			return string(make([]byte, 10)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	const requests, duplicates = 200, 0.2
	once(requests)
	once(requests)
	got := b.measure(t, func() {
		for i := range requests {
			once(i % int(requests*(1-duplicates)))
		}
	})
	small := shape
	small.Data = len(`{"value":"` + "\\u0000\\u0000\\u0000\\u0000\\u0000\\u0000\\u0000\\u0000\\u0000\\u0000" + `"}`)
	first, replays := Once(requests, duplicates)
	want := b.model.Claim(small, 1).Plus(b.model.Keep(small, 1)).Times(first).Plus(b.model.Replay(small, 1).Times(replays))
	b.check(t, "200 requests, 40 of them again", got, want, Cost{Log: 2000})
}

// jobs checks what a job costs that has a mutex.
func (b *backend) jobs(t *testing.T) {
	c := client(t, b.open(t, never), &dibs.Options{Label: "scale"})
	job := func(i int) {
		key := keyName("job", i)
		place, err := c.Reserve(t.Context(), key, time.Hour, nil)
		if err != nil {
			t.Fatal(err)
		}
		lease, err := c.Redeem(t.Context(), place, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		job(100 + i)
	}
	const jobs = 20
	got := b.measure(t, func() {
		for i := range jobs {
			job(i + 1)
		}
	})
	b.check(t, "20 jobs", got, b.model.Job(shape).Times(jobs), Cost{Log: 2000})
}

// waiting checks what those cost who wait for one key, in several processes, and what it
// costs to let them all have it.
func (b *backend) waiting(t *testing.T) {
	const window = 1500 * time.Millisecond
	for _, crowd := range []struct{ waiters, processes int }{{1, 1}, {8, 4}, {64, 16}} {
		t.Run(fmt.Sprintf("%d in %d", crowd.waiters, crowd.processes), func(t *testing.T) {
			watcher := b.open(t, never)
			var clients []*dibs.Client
			for range crowd.processes {
				clients = append(clients, client(t, b.open(t, never), &dibs.Options{Label: "scale"}))
			}
			c := gather(t, watcher, clients, keyName("hot", 0), crowd.waiters)
			pass(askNear) // until all know where they are told, and nothing is new
			ask := b.model.Ask(shape, crowd.waiters)
			var polls Cost // each second
			for p := range crowd.processes {
				polls = polls.Plus(b.model.Polls(shape, crowd.waiters/crowd.processes, p))
			}
			idle := b.model.Idle(4, time.Hour).Times(float64(crowd.processes))
			var took time.Duration
			got := b.measure(t, func() { took = pass(window) })
			want := ask.Times(Asks(crowd.waiters)).Plus(polls, idle).Times(took.Seconds())
			// On a busy machine a client may open one connection more, and a server may have
			// something of its own to write, such as statistics.
			slack := ask.Times(float64(crowd.waiters)).Plus(idle.Times(took.Seconds()), Cost{Calls: 2, In: 250, Out: 400, Log: 40_000})
			b.between(t, fmt.Sprintf("%d wait in %d", crowd.waiters, crowd.processes), got, want.Times(1.0/busy), want, slack)

			start := time.Now()
			got = b.measure(t, func() { c.goOn(t) })
			took = time.Since(start)
			least := b.model.Release(shape, 1)
			for left := range crowd.waiters {
				least = least.Plus(b.model.HandOver(shape, left+1))
			}
			most := least.Plus(polls.Times(fastest*took.Seconds()), ask.Times(Asks(crowd.waiters)*took.Seconds()), idle.Times(took.Seconds()))
			b.between(t, fmt.Sprintf("%d hand-overs in %d", crowd.waiters, crowd.processes), got, least.Times(1.0/busy), most, slack)
			t.Logf("%d hand-overs took %v", crowd.waiters, took)
		})
	}
}

// kept checks how many bytes records, leases and places take.
func (b *backend) kept(t *testing.T) {
	s := b.open(t, never)
	keep := func(what string, n int, each float64, put func(x *batch)) {
		before := b.space(t)
		for from := 0; from < n; from += 200 {
			put(newBatch(fmt.Sprintf("%c%d-%d", what[0], n, from), min(200, n)))
		}
		b.within(t, fmt.Sprintf("%d %s", n, what), factor, b.space(t)-before, float64(n)*each, float64(n)*each, b.grain)
	}
	line := newBatch("line", 1)
	line.claim(t, s, dibs.Granted)
	b.space(t) // what comes with a first call, of the server's own
	for _, n := range []int{100, 10_000} {
		keep("records", n, b.model.Record(shape), func(x *batch) {
			x.claim(t, s, dibs.Granted)
			x.keep(t, s, shape.Data, time.Hour)
		})
		keep("leases", n, b.model.Lease(shape), func(x *batch) { x.claim(t, s, dibs.Granted) })
		keep("places", n, b.model.Place(shape), func(x *batch) {
			x.wait(line.claims[0].Key, dibs.Reserve)
			x.claim(t, s, dibs.Held)
		})
	}
}

// sweep checks what it costs to look through many records that have not ended.
func (b *backend) sweep(t *testing.T) {
	pruner, ok := b.open(t, never).(dibs.Pruner)
	if !ok {
		return // all that is in Redis ends by itself
	}
	prune := func() {
		if _, err := pruner.Prune(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	// What a server has of its own to write it writes now and then only.
	least := func() (least counts) {
		for n := range 5 {
			if got := b.measure(t, prune); n == 0 || got.Log < least.Log {
				least = got
			}
		}
		return least
	}
	prune() // the locks of other tests
	before := least()
	const records = 10_000
	s := b.open(t, never)
	for from := 0; from < records; from += 200 {
		x := newBatch(fmt.Sprint("s", from), 200)
		x.claim(t, s, dibs.Granted)
		x.keep(t, s, shape.Data, time.Hour)
	}
	prune() // what their writing has left
	got := least()
	got.Cost, got.work = got.Plus(before.Times(-1)), got.work-before.work
	b.check(t, "10000 records are looked through", got, b.model.Sweep(shape, records), Cost{Calls: 20, In: 2000, Out: 2000, Log: 20_000})
	if want := b.model.Sweep(shape, records).Read; want > 0 {
		b.within(t, "10000 records are looked through: bytes", factor, got.work*b.unit, want, want, 100*b.unit)
	}
}

// processes checks how many connections processes have, when somebody has waited in each,
// and what they cost then that do nothing.
func (b *backend) processes(t *testing.T) {
	if b.connections == nil {
		return
	}
	calm := b.open(t, testPrune) // goes through all keys once
	client(t, calm, nil)
	eventually(t, "nothing is left to look for", func() bool {
		return b.measure(t, func() { pass(2 * testPrune) }).Calls < 30
	})
	const window = 2 * time.Second
	for _, processes := range []int{1, 4, 16} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			before := b.connections(t)
			var clients []*dibs.Client
			for range processes {
				clients = append(clients, client(t, b.open(t, testPrune), nil))
			}
			opened := b.connections(t) - before
			gather(t, calm, clients, keyName("hot", 0), 2*processes).goOn(t)
			least, most := b.model.Connections()
			waited := b.connections(t) - before
			t.Logf("%d processes: %d connections when opened, %d when somebody has waited; the model says %d to %d each", processes, opened, waited, least, most)
			if waited < processes*least || waited > processes*most+most {
				b.miss("%d processes have %d connections; the model says %d to %d each", processes, waited, least, most)
			}
			each := float64(waited) / float64(processes)
			want := b.model.Idle(each, testPrune).Times(float64(processes)).Plus(b.model.Idle(1, testPrune))
			var took time.Duration
			got := b.measure(t, func() { took = pass(window) })
			b.check(t, fmt.Sprintf("%d processes do nothing", processes), got, want.Times(took.Seconds()), Cost{Calls: 16, In: 2500, Out: 2500, Log: 10_000})
		})
	}
}

// testPrune is how often stores look for what has ended while that is counted.
const testPrune = time.Second
