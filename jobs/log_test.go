package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// newLog returns a log with all levels, and its logger.
func newLog() (*testkit.Output, *slog.Logger) {
	log := new(testkit.Output)
	return log, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// TestOneLineAJob: each job has one line at DEBUG, whatever becomes of it, and however often it
// was requeued.
func TestOneLineAJob(t *testing.T) {
	accident := errors.New("an accident")
	for name, c := range map[string]struct {
		options jobs.Options
		busy    bool // while the job first comes
		twice   bool // it is delivered again
		result  error
		want    []string
	}{
		"runs at once": {want: []string{"succeeded"}},
		"requeued":     {busy: true, want: []string{"succeeded"}},
		"fails":        {result: accident, want: []string{"failed"}},
		"skipped":      {options: jobs.Options{Policy: jobs.Skip}, busy: true, want: []string{"skipped"}},
		"remembered":   {options: jobs.Options{Once: time.Hour}, twice: true, want: []string{"succeeded", "remembered"}},
	} {
		simulateAs(t, name, func(t *testing.T, f *fixture) {
			log, logger := newLog()
			c.options.Logger = logger
			m := f.mutex(&c.options)
			deliver := func(ticket string) error {
				j := jobs.Job{Kind: "test", ID: "7", Key: "k", Ticket: ticket, Final: func(error) bool { return true }}
				return m.Run(t.Context(), j, func(context.Context) error { time.Sleep(time.Second); return c.result })
			}
			ticket := f.ticket(m, "k")
			if c.busy {
				holder := f.held("k")
				for range 3 {
					_ = deliver(ticket)
				}
				testkit.Must(t, holder.Release())
			}
			if c.options.Policy != jobs.Skip {
				if err := deliver(ticket); !errors.Is(err, c.result) {
					t.Fatal(err)
				}
			}
			if c.twice {
				testkit.Must(t, deliver(ticket))
			}
			lines := log.With("msg=")
			if c.options.Policy == jobs.Skip {
				lines = lines[:len(lines)-2] // it was delivered three times
			}
			if len(lines) != len(c.want) {
				t.Fatalf("%d lines, want %d:\n%s", len(lines), len(c.want), strings.Join(lines, ""))
			}
			for i, want := range c.want {
				text := fmt.Sprintf(`level=DEBUG msg="dibs: job %s" key=%s kind=test job=7 try=1 waited=`, want, f.client().Key("k").Digest())
				if !strings.Contains(lines[i], text) {
					t.Errorf("the line is %swant %s", lines[i], text)
				}
			}
		})
	}
}

// TestJobAfterACrashIsLoggedWhenItBegins: a job that may crash its program leaves a line before
// that.
func TestJobAfterACrashIsLoggedWhenItBegins(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		log, logger := newLog()
		m := f.mutex(&jobs.Options{Logger: logger})
		j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k")}
		if err := m.Run(t.Context(), j, func(context.Context) error { return errors.New("an accident") }); err == nil {
			t.Fatal("it did not fail")
		}
		testkit.Must(t, m.Run(t.Context(), j, func(context.Context) error {
			if lines := log.With(`level=INFO msg="dibs: job begins"`); len(lines) != 1 || !strings.Contains(lines[0], "abandoned=1") {
				t.Errorf("the lines are %q", lines)
			}
			return nil
		}))
	})
}

// TestOutageIsOneWarningAMinute: while the store does not answer, the jobs that cannot claim their
// keys are one warning a minute, and a line each at DEBUG.
func TestOutageIsOneWarningAMinute(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		log, logger := newLog()
		store := &mortalStore{Store: f.store}
		m := f.mutexOf(store, &jobs.Options{Logger: logger})
		store.dead.Store(true)
		start, tries := time.Now(), 0
		for ; time.Since(start) < 150*time.Second; tries++ {
			if err := m.Run(t.Context(), jobs.Job{Kind: "test", ID: "1", Key: "k"}, nothing); err == nil {
				t.Fatal("it ran without the store")
			}
			time.Sleep(time.Second)
		}
		warnings, lines := log.With(`level=WARN msg="dibs: job refused"`), log.With("dibs: job refused")
		if len(warnings) != 3 || len(lines) != tries {
			t.Errorf("%d warnings and %d lines in 150 s and %d tries, want 3 warnings", len(warnings), len(lines), tries)
		}
	})
}

// TestAHandlersErrorIsNotTakenForTheMutexs: a job that fails has failed, even if its error has a
// type that has a meaning for the Mutex, for example because the job uses dibs itself.
func TestAHandlersErrorIsNotTakenForTheMutexs(t *testing.T) {
	for name, o := range map[string]jobs.Options{
		"once":  {Once: time.Hour},
		"plain": {},
	} {
		for _, own := range []error{
			&dibs.KeepError{Err: errors.New("its own record")},
			&dibs.HeldError{},
			fmt.Errorf("its own key: %w", dibs.ErrDone),
		} {
			simulateAs(t, fmt.Sprintf("%s %T", name, own), func(t *testing.T, f *fixture) {
				m := f.mutex(&o)
				j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k")}
				if err := m.Run(t.Context(), j, func(context.Context) error { return own }); !errors.Is(err, own) {
					t.Errorf("the job ended with %v, want %v", err, own)
				}
				if s := m.Stats(); s.Failed != 1 || s.Succeeded != 0 {
					t.Errorf("%+v", s)
				}
				ran := false
				testkit.Must(t, m.Run(t.Context(), j, func(context.Context) error { ran = true; return nil }))
				if !ran {
					t.Error("it did not run again")
				}
			})
		}
	}
}

// TestOnceKeepsKindAndIDApart: two jobs are not taken for one, whatever characters their kinds
// and IDs have.
func TestOnceKeepsKindAndIDApart(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		m := f.mutex(&jobs.Options{Once: time.Hour})
		ran := 0
		for _, j := range []jobs.Job{{Kind: "a", ID: "b\x00c"}, {Kind: "a\x00b", ID: "c"}, {Kind: "a", ID: "bc"}, {Kind: "ab", ID: "c"}} {
			j.Key = "k"
			testkit.Must(t, m.Run(t.Context(), j, func(context.Context) error { ran++; return nil }))
		}
		if ran != 4 {
			t.Errorf("%d of 4 jobs ran", ran)
		}
	})
}
