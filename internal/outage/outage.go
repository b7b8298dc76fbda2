// Package outage logs that a store fails, and that it answers again.
package outage

import (
	"log/slog"
	"sync"
	"time"
)

// Pause is the shortest time between two lines that say that the store fails.
const Pause = time.Minute

// Log has two lines for an outage: "the store fails", at most once in Pause, and "the store
// answers again". Both are warnings. It is safe for concurrent use.
type Log struct {
	log    *slog.Logger
	counts string

	mu     sync.Mutex
	failed time.Time // under mu: of the last failure
	logged time.Time // under mu: of the last line about a failure
	count  int       // under mu: what failed since that line
	open   bool      // under mu: the store has not answered since that line
}

// New returns a Log that writes to log. counts is the name of the attribute that counts the
// failures since the last line, such as "requests".
func New(log *slog.Logger, counts string) *Log { return &Log{log: log, counts: counts} }

// Failed notes and counts one failure.
func (o *Log) Failed(err error) { o.fail(1, err) }

// FailedCheck notes a failure that is not counted, because nobody but an observer asked.
func (o *Log) FailedCheck(err error) { o.fail(0, err) }

func (o *Log) fail(count int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = time.Now()
	o.count += count
	if !o.logged.IsZero() && o.failed.Sub(o.logged) < Pause {
		return
	}
	o.log.Warn("the store fails", "error", err, o.counts, o.count)
	o.logged, o.count, o.open = o.failed, 0, true
}

// Answered notes that the store answers now.
func (o *Log) Answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answered()
}

// AnsweredSince notes that the store answered a call that began then. An answer to a call from
// before the last failure says nothing.
func (o *Log) AnsweredSince(began time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if began.After(o.failed) {
		o.answered()
	}
}

// answered logs the end of an outage. The level is that of the failure, because a reader who
// sees one line needs the other. The caller has mu.
func (o *Log) answered() {
	if !o.open {
		return
	}
	o.log.Warn("the store answers again", o.counts, o.count)
	o.count, o.open = 0, false
}
