package upstream

import (
	"slices"
	"sync"
	"time"
)

// lines are those that no exchange uses at the moment.
type lines struct {
	most  int
	after time.Duration // how long an idle one is kept

	mu    sync.Mutex
	idle  []*line // the last one used at the end
	timer *time.Timer
	armed bool
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// take returns the line that was used last, because the others may go; nil when
// there is none.
func (ls *lines) take() *line {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	n := len(ls.idle)
	if n == 0 {
		return nil
	}
	l := ls.idle[n-1]
	ls.idle[n-1] = nil
	ls.idle = ls.idle[:n-1]
	return l
}

// put keeps the line for another exchange.
func (ls *lines) put(l *line) {
	l.used, l.idle = true, false
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if len(ls.idle) >= ls.most {
		_ = l.Close() // nothing more is expected from it
		return
	}
	ls.idle = append(ls.idle, l)
	if !ls.armed {
		ls.armed = true
		if ls.timer == nil {
			ls.timer = time.AfterFunc(ls.after/2, ls.sweep)
		} else {
			ls.timer.Reset(ls.after / 2)
		}
	}
}

// sweep closes the lines that have been idle since the last sweep and marks the
// others, so that an exchange need not read the clock: a line is kept for at
// least half of the time, and for no more than all of it.
func (ls *lines) sweep() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.idle = slices.DeleteFunc(ls.idle, func(l *line) bool {
		if l.idle {
			_ = l.Close() // nothing more is expected from it
			return true
		}
		l.idle = true
		return false
	})
	if ls.armed = len(ls.idle) > 0; ls.armed {
		ls.timer.Reset(ls.after / 2)
	}
}

// close closes the idle lines.
func (ls *lines) close() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.idle {
		_ = l.Close() // nothing more is expected from it
	}
	clear(ls.idle)
	ls.idle = ls.idle[:0]
}
