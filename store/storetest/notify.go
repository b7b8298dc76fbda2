package storetest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/store"
)

var notifyProperties = []Property{
	property("NotifyServesTheNext",
		"A waiter that is woken at once works a moment after the key is free, and does not wait for its next question. From that step on no other caller can get the key.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			for name, end := range map[string]func(store.Key, store.Token) error{
				"release": p.release,
				"keep":    func(k store.Key, a store.Token) error { return p.keep(k, a, "answer") },
				"undo":    p.undo,
				"abandon": p.abandon,
			} {
				k, a, b, c := key(name), store.NewToken(), store.NewToken(), store.NewToken()
				wakes.ready(k)
				last := t.granted("the holder", p.try(k, a), 1)
				last = max(last, t.waits("the first waiter", q.queue(k, b), 0))
				last = max(last, t.waits("the second waiter", q.queue(k, c), 1))
				t.ok(name, end(k, a))
				t.state("a look at once", p.look(k), store.Held)
				t.state("another caller at once", p.try(k, store.NewToken()), store.Held)
				attempt := 1
				if name == "abandon" {
					attempt = 2
				}
				fence, _ := wakes.turn("the first waiter, after a "+name, k, b, last, attempt)
				if again := t.granted("the first waiter, asking again", q.queue(k, b), attempt); again != fence {
					t.Fatalf("the first waiter had the fence %d and holds with %d", fence, again)
				}
				if wakes.pushed(c) {
					t.Fatal("the second waiter was pushed a grant before its turn")
				}
				wakes.forget(c)
				t.ok("the first waiter's release", q.release(k, b))
				wakes.turn("the second waiter", k, c, fence, 1)
				t.ok("the second waiter's release", q.release(k, c))
				t.state("a look after that", p.look(k), store.Free)
			}
		}).needs(Notifier),
	property("NotifyWakesTheAnswered",
		"All duplicates that wait for one answer are woken when it is there, and ask. The lock's next waiter does not wait for them for long.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, a, locker, dups := key("k"), store.NewToken(), store.NewToken(), tokens(3)
			wakes.ready(k)
			last := t.granted("the holder", p.try(k, a, answerable), 1)
			t.waits("a duplicate", q.queue(k, dups[0], answerable), 0)
			t.waits("another duplicate", q.queue(k, dups[1], answerable), 1)
			t.waits("a lock", q.queue(k, locker), 2)
			t.waits("a duplicate behind it", q.queue(k, dups[2], answerable), 3)
			t.ok("keep", p.keep(k, a, "answer"))
			for _, dup := range []store.Token{dups[2], dups[1], dups[0]} {
				wakes.woken("a duplicate", dup)
				t.done("a duplicate", q.queue(k, dup, answerable), "answer")
			}
			wakes.turn("the lock", k, locker, last, 1)
		}).needs(Notifier),
	property("NotifyStops",
		"A closed client must not be called any more. The waiters of other clients are still woken.", func(t *Trial) {
			p, q := t.process(), t.process()
			stopped, going := q.listen(), q.listen()
			k, a, b, c := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			going.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			t.waits("the waiter", q.queue(k, b), 0)
			stopped.stop()
			t.ok("release", p.release(k, a))
			going.turn("the waiter, by the other listener", k, b, last, 1)
			t.waits("another", q.queue(k, c), 0)
			going.stop()
			t.ok("release", q.release(k, b))
			t.state("another caller", p.try(k, store.NewToken()), store.Held)
			t.granted("another, asking", q.queue(k, c), 1)
			if stopped.has(b) || going.has(c) {
				t.Error("a listener was called after it was stopped")
			}
		}).needs(Notifier),
	property("UnreachableWaiterKeepsItsNumber",
		"A store may skip a waiter whose process does not listen, so that the key is not idle. That waiter keeps its number: when it asks, it comes before all that joined later.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, a, unreachable, b, late := key("k"), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
			wakes.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			t.waits("an unreachable waiter", p.queue(k, unreachable), 0)
			last = max(last, t.waits("a reachable waiter", q.queue(k, b), 1))
			t.waits("a late one", p.queue(k, late), 2)
			t.ok("release", p.release(k, a))
			t.state("another caller", p.try(k, store.NewToken()), store.Held)
			d := p.queue(k, unreachable)
			if d.State == store.Held { // the store has skipped it
				t.waits("the skipped waiter", d, 0)
				wakes.turn("the reachable waiter", k, b, last, 1)
				t.ok("its release", q.release(k, b))
				t.state("the late one", p.queue(k, late), store.Held)
				t.granted("the skipped waiter", p.queue(k, unreachable), 1)
				return
			}
			t.granted("the unreachable waiter", d, 1)
			t.ok("its release", p.release(k, unreachable))
			wakes.turn("the reachable waiter", k, b, d.Fence, 1)
		}).needs(Notifier),
	property("NotifyServesTheWorker",
		"A worker that waits at its job's place begins when the place's turn comes, although the place is reserved. It gets a lease at the place's number.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			for _, name := range []string{"released", "undone", "abandoned"} {
				k, a, job, worker, b := key(name), store.NewToken(), store.NewToken(), store.NewToken(), store.NewToken()
				wakes.ready(k)
				last := t.granted("the holder", p.try(k, a), 1)
				t.waits("reserving", p.reserve(k, job), 0)
				t.waits("a waiter behind it", q.queue(k, b), 1)
				last = max(last, t.waits("the worker", q.queue(k, worker, from(job)), 0))
				t.ok("release", p.release(k, a))
				fence, _ := wakes.turn("the worker", k, worker, last, 1, from(job))
				t.ok("its renewal", q.renew(k, worker, long))
				t.waits("another worker", p.try(k, store.NewToken(), from(job)), 0)
				t.waits("the waiter", q.queue(k, b), 0)
				attempt := 1
				switch name {
				case "undone":
					t.ok("undo", q.undo(k, worker))
				case "abandoned":
					attempt = 2
					t.ok("abandon", q.abandon(k, worker))
				}
				if name != "released" {
					t.waits("the waiter, behind the place", q.queue(k, b), 1)
					worker = store.NewToken()
					fence = t.granted("the next worker", p.try(k, worker, from(job)), attempt)
				}
				wakes.forget(b)
				t.ok("the worker's release", q.release(k, worker))
				t.lost("giving the place up", p.release(k, job))
				wakes.turn("the waiter", k, b, fence, 1)
			}
		}).needs(Notifier),
	property("NotifySetsTheGrace",
		"A worker that begins with a pushed grant does not claim again. Its job's place must still get the Grace that the worker asked with, in case the worker dies.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			k, a, job, worker := key("k"), store.NewToken(), store.NewToken(), store.NewToken()
			wakes.ready(k)
			last := t.granted("the holder", p.try(k, a), 1)
			t.waits("reserving", p.reserve(k, job, grace(long)), 0)
			edits := []edit{from(job), grace(t.short())}
			last = max(last, t.waits("the worker", q.queue(k, worker, edits...), 0))
			t.ok("release", p.release(k, a))
			wakes.turn("the worker", k, worker, last, 1, edits...)
			t.ok("abandon", q.abandon(k, worker))
			before := time.Now()
			t.nowhere("another caller", p.try(k, store.NewToken()))
			t.freed("the place", before, time.Now(), t.short(), p, k)
		}).needs(Notifier),
	property("NotifyWakesTheDeleted",
		"Two workers have one job. When one of them is done, the job's number is deleted, and the other worker is woken because its place has ended.", func(t *Trial) {
			p, q := t.process(), t.process()
			wakes := q.listen()
			for name, end := range map[string]func(store.Key, store.Token) error{
				"release": p.release,
				"keep":    func(k store.Key, a store.Token) error { return p.keep(k, a, "answer") },
			} {
				k, job, first, second := key(name), store.NewToken(), store.NewToken(), store.NewToken()
				wakes.ready(k)
				t.waits("reserving", p.reserve(k, job), 0)
				last := t.granted("the first worker", p.try(k, first, from(job)), 1)
				t.waits("the second worker", q.queue(k, second, from(job)), 0)
				t.ok("the first worker's "+name, end(k, first))
				wakes.woken("the second worker", second)
				t.lost("giving up its place", q.release(k, second))
				d := q.queue(k, second, from(job))
				if t.granted("the second worker, as from no place", d, 1); d.Fence <= last {
					t.Fatalf("the second worker has the fence %d, after %d", d.Fence, last)
				}
			}
		}).needs(Notifier),
	property("NotifyUnderLoad",
		"Many waiters in several processes begin with their grants, some at reserved places, and some give up at the same moment. They must still run alone, one after the other.", func(t *Trial) {
			const callers, rounds = 6, 20
			procs := []*process{t.process(), t.process(), t.process()}
			wakes := make([]*listener, len(procs))
			for i, p := range procs {
				wakes[i] = p.listen()
			}
			k := key("k")
			var inside, pushed atomic.Int64
			var highest atomic.Uint64
			var running sync.WaitGroup
			for i := range callers {
				p, wakes := procs[i%len(procs)], wakes[i%len(procs)]
				running.Go(func() {
					for round := range rounds {
						w := store.NewToken()
						var edits []edit
						if round%3 == 0 {
							job := store.NewToken()
							edits = []edit{from(job)}
							procs[(i+1)%len(procs)].reserve(k, job)
						}
						if round%4 == 0 && p.queue(k, w, edits...).State == store.Held {
							_ = p.undo(k, w)
							w = store.NewToken()
						}
						var d store.Answer
						t.poll("a turn", func() bool {
							// As in a client, a pushed grant counts if its fence is above that of the
							// last answer, and for PushedTTL from the moment of that question.
							wakes.forget(w)
							asked := time.Now()
							if d = p.queue(k, w, edits...); d.State == store.Granted {
								return true
							}
							got, ok := wakes.within(w, store.PushedTTL/2)
							if !ok || got.State != store.Granted || got.Fence <= d.Fence || time.Since(asked) > t.turn*3/4 {
								return false
							}
							pushed.Add(1)
							d = got
							return true
						})
						if n := inside.Add(1); n != 1 {
							t.Errorf("%d holders at once", n)
						}
						if last := highest.Swap(d.Fence); last >= d.Fence {
							t.Errorf("the fence %d came after %d", d.Fence, last)
						}
						inside.Add(-1)
						if err := p.release(k, w); err != nil {
							t.Errorf("release: %v", err)
						}
					}
				})
			}
			running.Wait()
			t.Logf("of %d grants %d were pushed", callers*rounds, pushed.Load())
		}).needs(Notifier).heavy(),
}

// listener collects the wake-ups of the waiters of one process.
type listener struct {
	t    *Trial
	p    *process
	stop func()

	mu      sync.Mutex
	wakes   map[store.Token]store.Answer // the last of each token
	changed chan struct{}                // closed with each wake-up
}

// listen begins to collect. It stops when the trial ends.
func (p *process) listen() *listener {
	l := &listener{t: p.t, p: p, wakes: map[store.Token]store.Answer{}, changed: make(chan struct{})}
	l.stop = sync.OnceFunc(p.store.(store.Notifier).Notify(func(token store.Token, a store.Answer) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wakes[token] = a
		close(l.changed)
		l.changed = make(chan struct{})
	}))
	p.t.Cleanup(l.stop)
	return l
}

// ready waits with waiters of the process on the key until one is woken, because a store
// may begin to listen only when a caller waits.
func (l *listener) ready(k store.Key) {
	l.t.Helper()
	l.t.poll("a waiter that is woken", func() bool {
		a, b := store.NewToken(), store.NewToken()
		l.t.granted("a holder", l.p.try(k, a), 1)
		l.t.waits("a waiter", l.p.queue(k, b), 0)
		l.t.ok("its release", l.p.release(k, a))
		_, woken := l.within(b, store.PushedTTL/2)
		// If its pushed grant has expired by now, it is granted again.
		l.t.state("the waiter", l.p.queue(k, b), store.Granted)
		l.t.ok("its release", l.p.release(k, b))
		return woken
	})
}

// within returns the token's last wake-up as soon as there is one, or false after d.
func (l *listener) within(token store.Token, d time.Duration) (store.Answer, bool) {
	late := time.NewTimer(d)
	defer late.Stop()
	for {
		l.mu.Lock()
		a, ok := l.wakes[token]
		changed := l.changed
		l.mu.Unlock()
		if ok {
			return a, true
		}
		select {
		case <-changed:
		case <-late.C:
			return store.Answer{}, false
		}
	}
}

// wait waits for a wake-up of the token, fails the trial if there is none, and forgets it.
func (l *listener) wait(what string, token store.Token) store.Answer {
	l.t.Helper()
	a, ok := l.within(token, limit)
	if !ok {
		l.t.Fatalf("%s: not woken within %v", what, limit)
	}
	l.forget(token)
	return a
}

// woken fails the trial unless the token is woken to ask.
func (l *listener) woken(what string, token store.Token) {
	l.t.Helper()
	if a := l.wait(what, token); a.State != 0 {
		l.t.Fatalf("%s: pushed %s, want a wake-up", what, stateName(a.State))
	}
}

// turn waits until a waiter's grant is pushed, or it is woken and granted when it asks. It
// fails the trial unless the grant is that attempt, with a fence above that one. It returns
// the fence, and whether the grant was pushed.
func (l *listener) turn(what string, k store.Key, token store.Token, above uint64, attempt int, edits ...edit) (fence uint64, pushed bool) {
	l.t.Helper()
	a := l.wait(what, token)
	for a.State == 0 {
		d := l.p.queue(k, token, edits...)
		if d.State != store.Held { // otherwise it was a superfluous wake-up
			fence = l.t.granted(what+", woken", d, attempt)
			break
		}
		a = l.wait(what, token)
	}
	if a.State != 0 {
		pushed, fence = true, l.t.granted(what+", pushed", a, attempt)
		if attempt > 1 || len(a.Progress) > 0 {
			l.t.Fatalf("%s: pushed a grant after an abandoned lease, progress %q", what, a.Progress)
		}
	}
	if fence <= above {
		l.t.Fatalf("%s: has the fence %d, want one above %d", what, fence, above)
	}
	return fence, pushed
}

// pushed reports whether the token got a pushed grant.
func (l *listener) pushed(token store.Token) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wakes[token].State != 0
}

// has reports whether the token got a wake-up.
func (l *listener) has(token store.Token) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.wakes[token]
	return ok
}

// forget forgets the token's wake-up.
func (l *listener) forget(token store.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.wakes, token)
}
