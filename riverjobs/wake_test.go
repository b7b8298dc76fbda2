package riverjobs

import (
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
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
		place bool // it still has one
	}{
		{"put off", "", true, true, true},
		{"put off for less", "state = 'available'", true, true, true},
		{"put off for less, and due", "state = 'available', scheduled_at = now() - interval '1 minute'", false, true, true},
		{"not noted yet", "state = 'running', attempt = 1, metadata = metadata - 'snoozes'", false, false, true},
		{"fetched since", "state = 'running', attempt = 1, attempted_at = now()", false, true, true},
		{"put off again", "attempted_at = now(), metadata = metadata || '{\"snoozes\": 2}'", false, true, true},
		{"snoozed by somebody else", "metadata = metadata || '{\"snoozes\": 2}'", false, true, true},
		{"failed since", "state = 'retryable', attempt = 1", false, true, true},
		{"failed since, due soon", "state = 'available', attempt = 1", false, true, true},
		{"completed", "state = 'completed', finalized_at = now()", false, true, false},
		{"cancelled", "state = 'cancelled', finalized_at = now()", false, true, false},
		{"discarded", "state = 'discarded', finalized_at = now()", false, true, false},
		{"pending", "state = 'pending'", false, true, true},
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
			if done != c.done || err != nil {
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
			if n := h.waiting(c.name); (n == 1) != c.place {
				t.Errorf("the key has %d places", n)
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
		if done, err := d.wake(t.Context()); !done || err != nil || h.waiting("gone") != 0 {
			t.Errorf("wake returned %v, %v, and the key has %d places", done, err, h.waiting("gone"))
		}
	})
}

// TestWakeNotifies: a job that was made available is fetched at once, from the queue
// that it is in.
func TestWakeNotifies(t *testing.T) {
	t.Parallel()
	var l journal
	g := newGate()
	o := hostOptions{url: newDatabase(t), work: gated(&l, g), river: river.Config{FetchPollInterval: time.Hour}}
	o.mutex.Jobs.Seats = -1
	h := newHost(t, o)
	h.insert("it", 1, nil)
	l.await(t, 1)
	second := h.insert("it", 2, nil)
	h.await(second.ID, rivertype.JobStateScheduled)
	began := time.Now()
	close(g)
	h.await(second.ID, rivertype.JobStateCompleted)
	l.check(t, 1, 2)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it was completed after %v", took)
	}
}
