package storetest

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs/store"
)

var raceProperties = []Property{
	property("CounterUnderTheLock",
		"Many callers in many processes read a number, add one and write it back, each under the lock. If two of them overlap once, the sum is too small. They use no wake-ups.", func(t *Trial) {
			const callers, rounds = 12, 12
			procs := []*process{t.process(), t.process(), t.process()}
			k := key("k")
			// The steps are atomic, because a lock that lives in another
			// process orders them without the race detector's knowledge. The
			// whole is not.
			var counter, inside atomic.Int64
			var last atomic.Uint64
			var running sync.WaitGroup
			for i := range callers {
				p := procs[i%len(procs)]
				running.Go(func() {
					for range rounds {
						a := store.NewToken()
						var d store.Answer
						t.poll("the lock", func() bool {
							d = p.queue(k, a)
							return d.State == store.Granted
						})
						if n := inside.Add(1); n != 1 {
							t.Errorf("%d callers in the critical section", n)
						}
						if before := last.Swap(d.Fence); d.Fence <= before {
							t.Errorf("the fence %d does not rise above the last one, %d", d.Fence, before)
						}
						n := counter.Load()
						runtime.Gosched()
						counter.Store(n + 1)
						inside.Add(-1)
						t.ok("release", p.release(k, a))
					}
				})
			}
			running.Wait()
			if n := counter.Load(); n != callers*rounds {
				t.Fatalf("the counter is %d after %d increments", n, callers*rounds)
			}
		}).heavy(),
	property("DuplicatesRunOnce",
		"A client retries, a proxy retries, a user clicks twice: one of all the duplicates runs, and all get its answer.", func(t *Trial) {
			const keys, duplicates = 20, 8
			procs := []*process{t.process(), t.process(), t.process()}
			var runs [keys]atomic.Int64
			var running sync.WaitGroup
			for i := range keys * duplicates {
				p, n := procs[i%len(procs)], i%keys
				k, a := key("k"+itoa(n)), store.NewToken()
				running.Go(func() {
					var d store.Answer
					t.poll("an answer", func() bool {
						d = p.queue(k, a, answerable, asked(k.Name))
						return d.State != store.Held
					})
					if d.State == store.Granted {
						runs[n].Add(1)
						t.ok("keep", p.keep(k, a, "answer "+a.ID()))
						d = p.try(k, a, answerable, asked(k.Name))
					}
					t.state("a duplicate", d, store.Done)
					if first := p.look(k, answerable); string(first.Record.Data) != string(d.Record.Data) {
						t.Errorf("two duplicates were answered %q and %q", d.Record.Data, first.Record.Data)
					}
				})
			}
			running.Wait()
			for n := range runs {
				if r := runs[n].Load(); r != 1 {
					t.Errorf("the request %d ran %d times", n, r)
				}
			}
		}).heavy(),
}
