package storetest

import (
	"sync"
	"time"

	"github.com/dibs-go/dibs/store"
)

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
