package torture

import (
	"bytes"
	"context"
	"io"
	"os"
	"slices"
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// Progress is how far a run is.
type Progress struct {
	// Doing is what it does: "faults strike", "more time for faults that have not hit", "recovery"
	// or "checking".
	Doing string
	// Left is the time that is left for that; 0 if nobody knows.
	Left time.Duration
	// Faults is how many faults strike, and Hit how many of them had an effect.
	Faults, Hit int
	// Lines is how many lines the history of the workers has: mostly two for a call.
	Lines int
}

// progressEvery is the time between two reports of progress.
const progressEvery = time.Second

// stage is a part of a run.
type stage struct {
	doing string
	ends  time.Time // zero if nobody knows
}

// begin notes that a stage begins, which ends after d, unless that is 0.
func (r *run) begin(doing string, d time.Duration) {
	s := &stage{doing: doing}
	if d > 0 {
		s.ends = time.Now().Add(d)
	}
	r.stage.Store(s)
}

// tell reports the progress each progressEvery, and a last time when stop is called.
func (r *run) tell() (stop func()) {
	if r.Options.Progress == nil {
		return func() {}
	}
	ending, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var history lines
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for last := false; !last; {
			select {
			case <-ending:
				last = true
			case <-tick.C:
			}
			r.progress(&history)
		}
	}()
	return func() {
		close(ending)
		<-ended
	}
}

// progress calls Options.Progress.
func (r *run) progress(history *lines) {
	s := r.stage.Load()
	if s == nil {
		return // nothing has begun
	}
	p := Progress{Doing: s.doing, Faults: len(r.faults), Hit: int(r.hit.Load()), Lines: history.count(r.workers.histories())}
	if !s.ends.IsZero() {
		p.Left = max(time.Until(s.ends), 0)
	}
	r.Options.Progress(p)
}

// histories returns the names of the workers' files.
func (c *workers) histories() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.files)
}

// lines counts the lines of files that grow.
type lines struct {
	read map[string]int64
	n    int
}

// count returns how many lines the files have. A file that cannot be read counts as it was.
func (l *lines) count(files []string) int {
	if l.read == nil {
		l.read = map[string]int64{}
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		text, err := io.ReadAll(io.NewSectionReader(f, l.read[name], 1<<40))
		if f.Close(); err == nil {
			l.n += bytes.Count(text, []byte("\n"))
			l.read[name] += int64(len(text))
		}
	}
	return l.n
}

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
