package torture

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/proof/history"
)

// Locker is a lock of any library, for the trial. It may be used concurrently.
type Locker interface {
	// Lock waits for the lock of a key, and returns when it has it or ctx has ended.
	Lock(ctx context.Context, key string) (*Held, error)
}

// LockFunc is a Locker that is a function.
type LockFunc func(ctx context.Context, key string) (*Held, error)

// Lock calls the function.
func (l LockFunc) Lock(ctx context.Context, key string) (*Held, error) { return l(ctx, key) }

// Held is a lock that is held.
type Held struct {
	// Lost ends when the library says that the lock is lost. Nil: it never says so.
	Lost context.Context
	// Until is when the lock is over by itself. Zero: the library renews it, or it has no end.
	Until time.Time
	// Fence is the fencing token of the lock. 0: it has none.
	Fence uint64
	// Unlock gives the lock up.
	Unlock func() error
}

// over reports whether the holder must stop, by what the library told it.
func (h *Held) over() bool {
	return h.Lost != nil && h.Lost.Err() != nil || !h.Until.IsZero() && !time.Now().Before(h.Until)
}

const (
	// lockLimit is how long a key may be out of reach after the last fault.
	lockLimit = 30 * time.Second
	// work is how long a holder of a lock works on average.
	work = 60 * time.Millisecond
	// stall is for how long a process pauses that cannot be relied upon.
	stall = 200 * time.Millisecond
)

// NewCaller is in each of Report.Stuck that is about a caller which came after the last fault. The
// others are about callers that have waited since before.
const NewCaller = "a new caller"

// errNoTurn ends the waits that have lasted since before the last fault.
var errNoTurn = errors.New("no turn")

// workLocks lets the lanes take locks while faults strike, and then takes every one once more.
func (w *worker) workLocks(ctx context.Context) {
	waits, noTurn := context.WithCancelCause(ctx)
	defer noTurn(nil)
	w.beside.Go(func() { w.noteStalls(waits) })
	w.beside.Go(func() {
		select {
		case <-w.recovery:
			if backoff.Sleep(waits, lockLimit) == nil {
				noTurn(errNoTurn)
			}
		case <-waits.Done():
		}
	})
	w.each(ctx, func(l *lane) {
		l.waits = waits
		for !l.Calm() && l.ctx.Err() == nil {
			l.locked()
			l.Rest(l.ctx, time.Duration(l.ExpFloat64()*float64(l.task.Pause)))
		}
	})
	if ctx.Err() == nil {
		w.sweepLocks(ctx)
	}
	noTurn(nil)
	w.beside.Wait()
}

// noteStalls writes down when this process paused because the machine had no time for it.
func (w *worker) noteStalls(ctx context.Context) {
	for last := history.Now(); backoff.Sleep(ctx, stall/10) == nil; {
		now := history.Now()
		if now-last > stall {
			w.Note(history.Event{Kind: history.Stopped, Name: "stall", Call: last, Return: now})
		}
		last = now
	}
}

// locked takes a lock, works under it, and gives it up.
func (l *lane) locked() {
	key := hotKey("mutex", l.IntN(hotKeys))
	ctx, cancel := context.WithCancel(l.waits)
	if l.odds(12) { // a caller that gives up
		ctx, cancel = context.WithTimeout(l.waits, l.upTo(60*time.Millisecond))
	}
	defer cancel()
	asked := history.Now()
	held, err := l.opened.Locker.Lock(ctx, key)
	if err != nil {
		if errors.Is(context.Cause(ctx), errNoTurn) {
			l.out.send(message{Stuck: fmt.Sprintf("%s: a caller that has waited since before the last fault has no turn %v after it", key, lockLimit)})
		} else if ctx.Err() == nil {
			l.failed(err)
		}
		return
	}
	l.Crash("before the section")
	l.under(key, asked, held)
	l.Crash("before the release")
	if err := held.Unlock(); err != nil {
		l.failed(err)
	}
}

// under works under a lock for as long as the library says that it is held.
func (l *lane) under(key string, asked time.Duration, held *Held) {
	enter := history.Event{
		Kind: history.Enter, Key: key, Fence: held.Fence, Call: asked, Return: history.Now(),
		Token: fmt.Sprintf("%d.%d.%d", l.Process, l.Restarts, l.sections.Add(1)),
	}
	if !held.Until.IsZero() {
		enter.Left = time.Until(held.Until)
	}
	if held.over() {
		l.Lost()
		return
	}
	l.Note(enter)
	leave := history.Event{Kind: history.Leave, Key: key, Token: enter.Token, Call: enter.Return, Return: enter.Return}
	hold := time.Duration(l.ExpFloat64() * float64(work))
	if l.odds(6) { // so long that the lock must be renewed, or ends
		hold = l.upTo(3 * l.TTL)
	}
	for end := time.Now().Add(hold); time.Now().Before(end) && !l.Calm(); {
		now := history.Now()
		if held.over() {
			leave.Error = history.Lost
			l.Lost()
			break
		}
		leave.Call, leave.Return = now, max(now, leave.Return)
		l.Crash("in the section")
		if l.Freeze(key) {
			leave.Return = history.Now() // a write between the look at the lock and the end
		}
		if held.Fence != 0 {
			l.Write(key, held.Fence)
		}
		l.Rest(l.ctx, min(time.Until(end), work/5))
	}
	l.Note(leave)
}

// sweepLocks takes the lock of every key once.
func (w *worker) sweepLocks(ctx context.Context) {
	var all sync.WaitGroup
	for i := range hotKeys {
		all.Go(func() {
			key := hotKey("mutex", i)
			ctx, cancel := context.WithTimeout(ctx, lockLimit)
			defer cancel()
			for {
				held, err := w.opened.Locker.Lock(ctx, key)
				if err == nil {
					if err := held.Unlock(); err != nil {
						w.failed(err)
					}
					return
				}
				if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
					w.out.send(message{Stuck: fmt.Sprintf("%s: %s does not get it within %v after the last fault: %v", key, NewCaller, lockLimit, err)})
					return
				}
			}
		})
	}
	all.Wait()
	w.out.send(message{Swept: hotKeys})
}
