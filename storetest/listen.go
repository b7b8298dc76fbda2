package storetest

import (
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// listener collects what the waiters of one process are told.
type listener struct {
	t    *Trial
	p    *process
	stop func()

	mu      sync.Mutex
	heard   map[dibs.Token]dibs.Answer
	changed chan struct{} // closed with each word
}

// listen begins to collect. It stops when the trial ends.
func (p *process) listen() *listener {
	l := &listener{t: p.t, p: p, heard: map[dibs.Token]dibs.Answer{}, changed: make(chan struct{})}
	l.stop = sync.OnceFunc(p.store.(dibs.Notifier).Notify(func(token dibs.Token, a dibs.Answer) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.heard[token] = a
		close(l.changed)
		l.changed = make(chan struct{})
	}))
	p.t.Cleanup(l.stop)
	return l
}

// ready lets waiters of the process have their turns on the key until one hears of it:
// a store may begin to listen only when somebody waits.
func (l *listener) ready(k dibs.Key) {
	l.t.Helper()
	l.t.poll("a waiter that hears of its turn", func() bool {
		a, b := dibs.NewToken(), dibs.NewToken()
		l.t.granted("a holder", l.p.try(k, a), 1)
		l.t.waits("a waiter", l.p.queue(k, b), 0)
		l.t.ok("its release", l.p.release(k, a))
		_, heard := l.within(b, dibs.PushedTTL/2)
		// If it was told, and its turn is over by now, it is granted anew.
		l.t.state("the waiter", l.p.queue(k, b), dibs.Granted)
		l.t.ok("its release", l.p.release(k, b))
		return heard
	})
}

// within returns the last that the token was told, once it was told anything,
// or false when that takes longer than d.
func (l *listener) within(token dibs.Token, d time.Duration) (dibs.Answer, bool) {
	late := time.NewTimer(d)
	defer late.Stop()
	for {
		l.mu.Lock()
		a, ok := l.heard[token]
		changed := l.changed
		l.mu.Unlock()
		if ok {
			return a, true
		}
		select {
		case <-changed:
		case <-late.C:
			return dibs.Answer{}, false
		}
	}
}

// wait waits until the token is told anything, and fails the trial when it is not.
// What it returns it forgets.
func (l *listener) wait(what string, token dibs.Token) dibs.Answer {
	l.t.Helper()
	a, ok := l.within(token, limit)
	if !ok {
		l.t.Fatalf("%s: not woken within %v", what, limit)
	}
	l.forget(token)
	return a
}

// woken fails the trial unless the token is woken to ask.
func (l *listener) woken(what string, token dibs.Token) {
	l.t.Helper()
	if a := l.wait(what, token); a.State != 0 {
		l.t.Fatalf("%s: told %s, want a wake-up", what, stateName(a.State))
	}
}

// turn waits until a waiter is told its grant, or is woken and granted when it asks. It
// fails the trial unless that is such an attempt, above that fence. It returns its
// fence, and whether it was told.
func (l *listener) turn(what string, k dibs.Key, token dibs.Token, above uint64, attempt int, edits ...edit) (fence uint64, told bool) {
	l.t.Helper()
	a := l.wait(what, token)
	for a.State == 0 {
		d := l.p.queue(k, token, edits...)
		if d.State != dibs.Held { // else it was one wake-up too many
			fence = l.t.granted(what+", woken", d, attempt)
			break
		}
		a = l.wait(what, token)
	}
	if a.State != 0 {
		told, fence = true, l.t.granted(what+", told", a, attempt)
		if attempt > 1 || len(a.Progress) > 0 {
			l.t.Fatalf("%s: told a grant after an abandoned lease, progress %q", what, a.Progress)
		}
	}
	if fence <= above {
		l.t.Fatalf("%s: has the fence %d, want one above %d", what, fence, above)
	}
	return fence, told
}

// told reports whether the token was told a grant.
func (l *listener) told(token dibs.Token) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard[token].State != 0
}

// has reports whether the token was told anything.
func (l *listener) has(token dibs.Token) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.heard[token]
	return ok
}

// forget forgets what the token was told.
func (l *listener) forget(token dibs.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.heard, token)
}
