package pgstore

import (
	"sync/atomic"
	"time"
)

// unheardFor is how long a call may be under way in the server after nothing was heard of
// it, mostly: it waits for each row that somebody has locked for 2 s at most.
const unheardFor = 30 * time.Second

// unheard tells whether there may be such calls.
type unheard struct {
	since atomic.Pointer[time.Time]
}

// add notes that there is one from now on.
func (u *unheard) add() {
	now := time.Now()
	u.since.Store(&now)
}

func (u *unheard) is() bool {
	since := u.since.Load()
	return since != nil && time.Since(*since) < unheardFor
}
