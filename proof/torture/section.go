package torture

import (
	"errors"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
)

// kindOf returns the kind of a key.
func kindOf(key string) string {
	kind, _, _ := strings.Cut(key, "/")
	return kind
}

// section is the work of a holder. It writes to the key's resource with its fence, and saves
// progress. Mostly it looks first whether it still holds the lease; sometimes it does not, like
// a holder that was stopped after it looked.
func (l *lane) section(lease *dibs.Lease, permits, weight int) {
	e := history.Event{
		Kind: history.Enter, Key: lease.Key().Name, Fence: lease.Fence(), Permits: permits, Weight: weight,
		Token: history.Token(l.store, lease.ID()),
	}
	l.note(e)
	ctx := lease.Context()
	for end := time.Now().Add(l.hold()); ; {
		if permits == 1 && (ctx.Err() == nil || l.odds(3)) {
			l.write(e.Key, e.Fence)
		}
		if l.odds(12) && ctx.Err() == nil {
			_ = lease.Save(ctx, []byte(e.Token))
		}
		l.crash("in the section")
		if l.freeze(e.Key, freezeOdds) {
			// The pause that fences are for: between the look at the lease and the write.
			l.write(e.Key, e.Fence)
		}
		t := time.NewTimer(min(time.Until(end), 1+l.upTo(l.TTL/4)))
		over := false
		select {
		case <-t.C:
		case <-ctx.Done():
			over = true
		case <-l.recovery:
			over = true
		}
		t.Stop()
		if over || !time.Now().Before(end) {
			break
		}
	}
	e.Kind, e.Call = history.Leave, history.Now() // it may be long until this is written down
	if errors.Is(lease.Err(), dibs.ErrLost) {
		e.Error = history.Lost
		l.out.send(message{Lost: true})
		if permits == 1 {
			// The late write, on purpose.
			l.write(e.Key, e.Fence)
		}
	}
	l.note(e)
}

// freeze stops this process for longer than its lease lasts, one in so many times, so that
// another holder gets the key. It reports whether it did.
func (l *lane) freeze(key string, odds int) bool {
	if !l.Crash || !strings.HasPrefix(key, "mutex/hot/") || !l.odds(odds) {
		return false
	}
	l.crashing.RLock()
	defer l.crashing.RUnlock()
	if !l.noCrash {
		l.standStill(l.ctx)
	}
	return !l.noCrash
}

// freezeOdds is one in how many times a lane freezes where it can.
const freezeOdds = 150

// hold returns how long a section takes: mostly milliseconds, and sometimes so long that the
// lease must be renewed.
func (l *lane) hold() time.Duration {
	switch {
	case l.faultsEnded():
		return 0
	case l.odds(40):
		return l.upTo(2 * l.TTL)
	}
	return time.Duration(l.r.ExpFloat64() * float64(5*time.Millisecond))
}

// leave ends a lease in one of several ways, and reports whether it was released.
func (l *lane) leave(lease *dibs.Lease) (clean bool) {
	l.crash("before the release")
	var err error
	switch n := l.r.IntN(20); {
	case n < 16:
		err, clean = lease.Release(), true
	case n < 18:
		err = lease.Abandon(l.ctx)
	default:
		err = lease.Undo(l.ctx)
	}
	if err != nil {
		_ = lease.Release() // what failed is tried once more, in the background
		return true
	}
	return clean
}
