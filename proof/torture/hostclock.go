package torture

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// clockSet is the name of a fault that no code makes: something else set the host's time of day.
// A server on this host counts leases by it, so that a lease may end early.
const clockSet = "host-clock"

const (
	// clockLooks is how often the time of day is compared with the monotonic clock. A difference
	// of clockStep means that it was set, because slewing moves it by 0.05 % at most.
	clockLooks = 20 * time.Millisecond
	clockStep  = 2 * time.Millisecond
)

// timeOfDay returns how far the host's time of day is ahead of its monotonic clock. It is not ok
// if the two were read too far apart.
func timeOfDay() (ahead time.Duration, ok bool) {
	before := history.Now()
	day := time.Duration(time.Now().UnixNano())
	return day - before, history.Now()-before < time.Millisecond
}

// watchClock calls set, until ctx ends, for each time that the time of day was set: from when it
// was not yet set, to when it was, and by how much.
func watchClock(ctx context.Context, look func() (time.Duration, bool), now func() time.Duration, set func(from, to, by time.Duration)) {
	ticker := time.NewTicker(clockLooks)
	defer ticker.Stop()
	last, known := look()
	for from := now(); ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		ahead, ok := look()
		if !ok {
			continue
		}
		to := now()
		if by := ahead - last; known && by.Abs() >= clockStep {
			set(from, to, by)
		}
		last, known, from = ahead, true, to
	}
}

// watchClock has steps of the host's clock in the history, until stop.
func (r *run) watchClock() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watchClock(ctx, timeOfDay, history.Now, func(from, to, by time.Duration) {
			r.report.ClockSet++
			r.Log.Warn("the host's clock was set", "by", by)
			_ = r.w.Happened(history.Event{Kind: history.Fault, Name: clockSet, Times: 1, Call: from, Return: to, Text: by.String()})
		})
	}()
	return func() {
		cancel()
		<-done
	}
}
