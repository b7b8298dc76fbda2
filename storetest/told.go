package storetest

import (
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// grantListener collects what the waiters of one process are told.
type grantListener struct {
	t    *Trial
	p    *process
	stop func()

	mu      sync.Mutex
	heard   map[dibs.Token]dibs.Answer
	changed chan struct{} // closed with each word
}

// listenGrants begins to collect. It stops when the trial ends.
func (p *process) listenGrants() *grantListener {
	l := &grantListener{t: p.t, p: p, heard: map[dibs.Token]dibs.Answer{}, changed: make(chan struct{})}
	l.stop = sync.OnceFunc(p.store.(dibs.GrantNotifier).NotifyGrants(func(token dibs.Token, a dibs.Answer) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.heard[token] = a
		close(l.changed)
		l.changed = make(chan struct{})
	}))
	p.t.Cleanup(l.stop)
	return l
}

// ready lets waiters of the process have their turns on the key until one is told
// its grant: a store may begin to listen only when somebody waits.
func (l *grantListener) ready(k dibs.Key) {
	l.t.Helper()
	l.t.poll("a grant that is told", func() bool {
		a, b := dibs.NewToken(), dibs.NewToken()
		l.t.granted("a holder", l.p.try(k, a), 1)
		l.t.waits("a waiter", l.p.queue(k, b), 0)
		l.t.ok("its release", l.p.release(k, a))
		told, ok := l.within(b, dibs.Turn/2)
		// If its turn is over by now it is granted anew, as another attempt.
		l.t.state("the waiter", l.p.queue(k, b), dibs.Granted)
		l.t.ok("its release", l.p.release(k, b))
		return ok && told.State == dibs.Granted
	})
}

// within returns the last that the token was told, once it was told anything,
// or false when that takes longer than d.
func (l *grantListener) within(token dibs.Token, d time.Duration) (dibs.Answer, bool) {
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
func (l *grantListener) wait(what string, token dibs.Token) dibs.Answer {
	l.t.Helper()
	a, ok := l.within(token, limit)
	if !ok {
		l.t.Fatalf("%s: not woken within %v", what, limit)
	}
	l.forget(token)
	return a
}

// told fails the trial unless the token is told the grant of such an attempt,
// above that fence, and returns its fence.
func (l *grantListener) told(what string, token dibs.Token, above uint64, attempt int) uint64 {
	l.t.Helper()
	a := l.wait(what, token)
	if a.State != dibs.Granted {
		l.t.Fatalf("%s: woken to ask, and not told the grant", what)
	}
	if a.Fence <= above || a.Attempt != attempt || a.Progress != nil {
		l.t.Fatalf("%s: told the fence %d, attempt %d, progress %q; want a fence above %d, and attempt %d",
			what, a.Fence, a.Attempt, a.Progress, above, attempt)
	}
	return a.Fence
}

// woken fails the trial unless the token is woken to ask.
func (l *grantListener) woken(what string, token dibs.Token) {
	l.t.Helper()
	if a := l.wait(what, token); a.State != 0 {
		l.t.Fatalf("%s: told %s, want a wake-up", what, stateName(a.State))
	}
}

// has reports whether the token was told anything.
func (l *grantListener) has(token dibs.Token) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.heard[token]
	return ok
}

// forget forgets what the token was told.
func (l *grantListener) forget(token dibs.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.heard, token)
}

// waitsAt is waits, and returns the fence of the answer.
func (t *Trial) waitsAt(what string, a dibs.Answer, ahead int) uint64 {
	t.Helper()
	t.waits(what, a, ahead)
	return a.Fence
}
