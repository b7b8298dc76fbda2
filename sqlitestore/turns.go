package sqlitestore

import (
	"sync/atomic"
	"time"
)

// turns lets those who want to write to the file do so one at a time: in this process
// the writing goroutine and the first of the application's transactions by turns, and
// with those of other processes in the order of the turnstile.
type turns struct {
	mine chan struct{} // has an element while it is this process's, or is asked for

	// What follows belongs to whoever has put that there.
	turnstile *turnstile
	left      time.Time // when somebody here wrote last

	others  atomic.Bool  // another Store has written since this one did
	waiting atomic.Int32 // transactions of the application's that are not next yet
	written time.Time    // when the writing goroutine last did; its own
}

// courtesy is how long the file is left to other processes after a turn, when they
// write too: whoever is first in the kernel's queue has to wake up before it can take
// its turn.
const courtesy = 150 * time.Microsecond

// precedence is how long the application's transactions that are waiting in this
// process go before the calls that do, since those were last written: these can share
// a transaction, and the more of them there are the better.
const precedence = 5 * time.Millisecond

// yield lets the application's transactions that wait go before the writing goroutine.
func (t *turns) yield() {
	for t.waiting.Load() > 0 && time.Since(t.written) < precedence {
		time.Sleep(precedence / 20)
	}
}

// enter waits for a turn. While it waits it calls idle every now and then, and gives
// up when that reports true.
func (t *turns) enter(idle func() bool) bool {
	if !t.enterHere(idle) {
		return false
	}
	if t.others.Load() {
		time.Sleep(courtesy - time.Since(t.left))
	}
	if !t.turnstile.enter(idle) {
		<-t.mine
		return false
	}
	return true
}

// enterHere waits for the turn in this process. Two ask for it at most, and a channel
// lets those who wait in by turns.
func (t *turns) enterHere(idle func() bool) bool {
	select {
	case t.mine <- struct{}{}:
		return true
	default:
	}
	tick := time.NewTicker(turnstileTick)
	defer tick.Stop()
	for {
		select {
		case t.mine <- struct{}{}:
			return true
		case <-tick.C:
			if idle() {
				return false
			}
		}
	}
}

// leave lets the next one in.
func (t *turns) leave() {
	t.left = time.Now()
	t.turnstile.leave()
	<-t.mine
}
