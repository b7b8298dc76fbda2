package storetest

import (
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

var notifyProperties = []Property{
	{
		Name:  "NotifyWakesTheNext",
		Why:   "A waiter that is told at once when its turn has come works a moment after the release, instead of whenever it next asks.",
		Needs: []Feature{Notifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			woken := q.listen()
			for name, end := range map[string]func(dibs.Key, dibs.Token) error{
				"release": p.release,
				"keep":    func(k dibs.Key, a dibs.Token) error { return p.keep(k, a, "answer") },
				"abandon": p.abandon,
			} {
				k, a, b, c := key(name), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
				t.granted("the holder", p.try(k, a), 1)
				t.waits("the first waiter", q.queue(k, b), 0)
				t.waits("the second waiter", q.queue(k, c), 1)
				t.ok(name, end(k, a))
				woken.wait("the first waiter, after a "+name, b)
				t.state("the first waiter", q.queue(k, b), dibs.Granted)
				t.ok("it gives up", q.release(k, b))
				woken.wait("the second waiter", c)
				t.state("the second waiter", q.queue(k, c), dibs.Granted)
				t.ok("it is done", q.release(k, c))
			}
		},
	},
	{
		Name:  "NotifyWakesTheAnswered",
		Why:   "All duplicates that wait for one answer are told when it is there, and the lock's next waiter besides.",
		Needs: []Feature{Notifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			woken := q.listen()
			k, a, dup1, locker, dup2 := key("k"), dibs.NewToken(), dibs.NewToken(), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a, answerable), 1)
			t.waits("a duplicate", q.queue(k, dup1, answerable), 0)
			t.waits("a lock", q.queue(k, locker), 1)
			t.waits("another duplicate", q.queue(k, dup2, answerable), 2)
			t.ok("keep", p.keep(k, a, "answer"))
			woken.wait("a duplicate", dup1)
			woken.wait("another duplicate", dup2)
			woken.wait("the lock", locker)
			t.granted("the lock", q.queue(k, locker), 1)
			t.done("a duplicate", q.queue(k, dup1, answerable), "answer")
			t.done("another duplicate", q.queue(k, dup2, answerable), "answer")
		},
	},
	{
		Name:  "NotifyStops",
		Why:   "A client that was closed must not be called any more: what the wake-up would reach is gone.",
		Needs: []Feature{Notifier},
		Check: func(t *Trial) {
			p, q := t.process(), t.process()
			stopped, going := q.listen(), q.listen()
			k, a, b := key("k"), dibs.NewToken(), dibs.NewToken()
			t.granted("the holder", p.try(k, a), 1)
			t.waits("the waiter", q.queue(k, b), 0)
			stopped.stop()
			t.ok("release", p.release(k, a))
			going.wait("the waiter, by the other listener", b)
			t.granted("the waiter", q.queue(k, b), 1)
			if stopped.has(b) {
				t.Error("a listener was called after it was stopped")
			}
		},
	},
}

// listener collects the wake-ups of one process.
type listener struct {
	t    *Trial
	stop func()

	mu      sync.Mutex
	woken   map[dibs.Token]bool
	changed chan struct{}
}

// listen begins to collect. It stops when the trial ends.
func (p *process) listen() *listener {
	l := &listener{t: p.t, woken: map[dibs.Token]bool{}, changed: make(chan struct{}, 1)}
	l.stop = sync.OnceFunc(p.store.(dibs.Notifier).Notify(func(token dibs.Token) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.woken[token] = true
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}))
	p.t.Cleanup(l.stop)
	return l
}

// wait waits until the token was woken, and fails the trial when it is not.
func (l *listener) wait(what string, token dibs.Token) {
	l.t.Helper()
	late := time.NewTimer(limit)
	defer late.Stop()
	for !l.has(token) {
		select {
		case <-l.changed:
		case <-late.C:
			l.t.Fatalf("%s: not woken within %v", what, limit)
		}
	}
}

func (l *listener) has(token dibs.Token) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.woken[token]
}
