package riverjobs

import (
	"errors"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/jobs"
)

// TestWake: only the job that was put off is made available, and only from that.
func TestWake(t *testing.T) {
	t.Parallel()
	h := newHost(t, hostOptions{idle: true})
	for _, c := range []struct {
		name  string
		set   string // how the row differs from one that this delivery put off
		woken bool
		done  bool // nothing is left to do
		gone  bool // it will never run
	}{
		{"put off", "", true, true, false},
		{"put off for less", "state = 'available'", true, true, false},
		{"put off for less, and due", "state = 'available', scheduled_at = now() - interval '1 minute'", false, true, false},
		{"not noted yet", "state = 'running', attempt = 1, metadata = metadata - 'snoozes'", false, false, false},
		{"fetched since", "state = 'running', attempt = 1, attempted_at = now()", false, true, false},
		{"put off again", "attempted_at = now(), metadata = metadata || '{\"snoozes\": 2}'", false, true, false},
		{"snoozed by somebody else", "metadata = metadata || '{\"snoozes\": 2}'", false, true, false},
		{"failed since", "state = 'retryable', attempt = 1", false, true, false},
		{"failed since, due soon", "state = 'available', attempt = 1", false, true, false},
		{"completed", "state = 'completed', finalized_at = now()", false, false, true},
		{"cancelled", "state = 'cancelled', finalized_at = now()", false, false, true},
		{"discarded", "state = 'discarded', finalized_at = now()", false, false, true},
		{"pending", "state = 'pending'", false, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inserted := h.insert(c.name, 1, nil)
			exec := func(set string) {
				t.Helper()
				if _, err := h.pool.Exec(t.Context(), "UPDATE river_job SET "+set+" WHERE id = $1", inserted.ID); err != nil {
					t.Fatal(err)
				}
			}
			exec("state = 'running', attempt = 1, attempted_at = now() - interval '1 second'")
			d := &delivery{mutex: h.mutex, client: h.river, ctx: t.Context(), row: h.row(inserted.ID), note: readNote(inserted.Metadata)}
			exec("state = 'scheduled', attempt = 0, scheduled_at = now() + interval '1 hour', metadata = metadata || '{\"snoozes\": 1}'")
			if c.set != "" {
				exec(c.set)
			}
			before := h.row(inserted.ID)
			done, err := d.wake(t.Context())
			if done != c.done || errors.Is(err, jobs.ErrGone) != c.gone || err != nil && !c.gone {
				t.Errorf("wake returned %v, %v", done, err)
			}
			after := h.row(inserted.ID)
			if c.woken {
				if after.State != rivertype.JobStateAvailable || !after.ScheduledAt.Equal(inserted.ScheduledAt) {
					t.Errorf("it is %s and scheduled at %v; want available, at %v", after.State, after.ScheduledAt, inserted.ScheduledAt)
				}
			} else if after.State != before.State || !after.ScheduledAt.Equal(before.ScheduledAt) {
				t.Errorf("it was %s and scheduled at %v, and is %s, at %v", before.State, before.ScheduledAt, after.State, after.ScheduledAt)
			}
		})
	}
	t.Run("deleted", func(t *testing.T) {
		row := h.insert("gone", 1, nil)
		d := &delivery{mutex: h.mutex, client: h.river, ctx: t.Context(), row: h.row(row.ID), note: readNote(row.Metadata)}
		d.row.AttemptedAt = new(time.Now())
		if _, err := h.river.JobDelete(t.Context(), row.ID); err != nil {
			t.Fatal(err)
		}
		if done, err := d.wake(t.Context()); done || !errors.Is(err, jobs.ErrGone) {
			t.Errorf("wake returned %v, %v", done, err)
		}
	})
}

// TestWakeNotifies: a job that was made available is fetched at once, from the queue
// that it is in.
func TestWakeNotifies(t *testing.T) {
	t.Parallel()
	var l journal
	g := newGate()
	o := hostOptions{work: gated(&l, g), river: river.Config{FetchPollInterval: time.Hour}}
	o.mutex.Jobs = jobs.Options{Seats: -1, Recovery: time.Hour} // so that it does not come back by itself
	h := newHost(t, o)
	h.insert("it", 1, nil)
	l.await(t, 1)
	second := h.insert("it", 2, nil)
	h.await(second.ID, rivertype.JobStateScheduled)
	close(g)
	h.await(second.ID, rivertype.JobStateCompleted)
	l.check(t, 1, 2)
}
