package jobs

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// EventKind says what happened to a job.
type EventKind string

// The events of a job in a worker. Each try ends with exactly one of the events after
// EventAcquired, with three exceptions: after EventRemembered a job that had its key gets
// EventSucceeded, too; a job that ran anyway may get EventRemembered; and a wait that ended
// with its context gets no event.
const (
	EventAcquired   EventKind = "acquired"   // its turn has come, and it runs
	EventSucceeded  EventKind = "succeeded"  // it ran to its end
	EventFailed     EventKind = "failed"     // it ran and failed; Err says why
	EventLost       EventKind = "lost"       // it lost its key while it ran
	EventRequeued   EventKind = "requeued"   // it went back to its queue, because its turn has not come
	EventSkipped    EventKind = "skipped"    // another job of its key runs (Skip)
	EventReplaced   EventKind = "replaced"   // a newer job of its key has reached a worker (Replace, CancelRunning)
	EventRemembered EventKind = "remembered" // it was done before (Once)
	EventGaveUp     EventKind = "gave up"    // its Limit was over, and Options.GaveUp took it
	EventRanAnyway  EventKind = "ran anyway" // its Limit was over, and it ran without the key
	EventHeld       EventKind = "held"       // its Limit was over, and it failed with ErrHeld
	EventRefused    EventKind = "refused"    // its key could not be claimed; Err says why
)

// Event is the argument of Options.Observe. It names the key by its digest, so it may be
// logged.
type Event struct {
	Kind    EventKind
	JobKind string        // Job.Kind
	JobID   string        // Job.ID
	Key     string        // the key's digest
	Tries   int           // tries of workers so far, if known
	Waited  time.Duration // for its turn, if known
	Ran     time.Duration // 0 if it did not run
	// Abandoned is how many holders of the key in a row crashed or failed before this
	// job. Their work may be half done.
	Abandoned int
	Err       error
}

// Stats counts the events of a Mutex in this process.
type Stats struct {
	Acquired, Succeeded, Failed, Lost uint64
	Requeued, Skipped, Replaced       uint64
	Remembered                        uint64
	GaveUp, RanAnyway, Held, Refused  uint64
	// Waiting is how many jobs wait in a worker now, and Running how many run.
	Waiting, Running int
}

func (s *Stats) of(kind EventKind) *uint64 {
	return map[EventKind]*uint64{
		EventAcquired: &s.Acquired, EventSucceeded: &s.Succeeded, EventFailed: &s.Failed, EventLost: &s.Lost,
		EventRequeued: &s.Requeued, EventSkipped: &s.Skipped, EventReplaced: &s.Replaced,
		EventRemembered: &s.Remembered, EventGaveUp: &s.GaveUp, EventRanAnyway: &s.RanAnyway,
		EventHeld: &s.Held, EventRefused: &s.Refused,
	}[kind]
}

// Stats returns the counts.
func (m *Mutex) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

func (m *Mutex) count(change func(*Stats)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.stats)
}

// report counts and logs an event and calls Options.Observe.
func (m *Mutex) report(ctx context.Context, a *attempt, kind EventKind, err error) {
	m.count(func(s *Stats) { *s.of(kind)++ })
	e := Event{
		Kind: kind, JobKind: a.job.Kind, JobID: a.job.ID, Key: a.place.Key.Digest(),
		Tries: a.tries, Waited: a.waited, Err: err,
	}
	if a.lease != nil {
		e.Abandoned = a.lease.Attempt() - 1
	}
	if !a.began.IsZero() {
		e.Ran = time.Since(a.began)
	}
	m.log(ctx, a, &e)
	if m.options.Observe != nil {
		m.options.Observe(ctx, e)
	}
}

// log writes one line for each end of a job in a worker. A requeued job has not ended. A job
// that begins has a line only if the job before it crashed or failed, because it may crash the
// program, too.
func (m *Mutex) log(ctx context.Context, a *attempt, e *Event) {
	level, text := slog.LevelDebug, "dibs: job "+string(e.Kind)
	switch e.Kind {
	case EventRequeued:
		return
	case EventAcquired:
		if level = slog.LevelInfo; e.Abandoned == 0 {
			return
		}
		text = "dibs: job begins"
	case EventRemembered:
		if a.remembered = a.lease != nil; a.remembered {
			return // the event of its end follows
		}
	case EventSucceeded:
		if a.remembered {
			text = "dibs: job " + string(EventRemembered)
		}
	case EventRefused:
		if !storeAway(e.Err) || m.lastAway.due() {
			level = slog.LevelWarn
		}
	case EventLost, EventGaveUp, EventRanAnyway, EventHeld:
		level = slog.LevelWarn
	}
	if !m.options.Logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("key", e.Key), slog.String("kind", e.JobKind), slog.String("job", e.JobID),
		slog.Int("try", e.Tries), slog.Duration("waited", e.Waited), slog.Duration("ran", e.Ran),
	}
	if e.Abandoned > 0 {
		attrs = append(attrs, slog.Int("abandoned", e.Abandoned))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
	m.options.Logger.LogAttrs(ctx, level, text, attrs...)
}

// storeAway reports whether a claim failed because of the store. In an outage, all jobs fail so.
func storeAway(err error) bool {
	return errors.Is(err, dibs.ErrStore) || errors.Is(err, dibs.ErrBusy) || errors.Is(err, dibs.ErrFull) || errors.Is(err, dibs.ErrClosed)
}

// minutely is the time of a warning that is written once a minute.
type minutely struct{ last atomic.Int64 }

// due reports whether a minute is over since the last warning, and counts a new one.
func (m *minutely) due() bool {
	now := time.Now().UnixNano()
	last := m.last.Load()
	return (last == 0 || now-last >= int64(time.Minute)) && m.last.CompareAndSwap(last, now)
}
