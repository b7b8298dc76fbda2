package riverjobs

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/jobs"
)

func errorf(format string, args ...any) error { return fmt.Errorf(format, args...) }

// TestOnce: a second delivery of a job that is done does nothing.
func TestOnce(t *testing.T) {
	t.Parallel()
	var l journal
	g := newGate()
	close(g)
	h := newHost(t, hostOptions{work: gated(&l, g), mutex: Options{Jobs: jobs.Options{Once: time.Hour}}})
	row := h.insert("it", 1, nil)
	h.await(row.ID, rivertype.JobStateCompleted)
	if _, err := h.river.JobRetry(t.Context(), row.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "it was delivered again", func() bool { return h.mutex.Stats().Remembered == 1 })
	h.await(row.ID, rivertype.JobStateCompleted)
	h.await(h.insert("it", 2, nil).ID, rivertype.JobStateCompleted)
	l.check(t, 1, 2)
}

// effect writes down that a job was done.
func effect(ctx context.Context, tx pgx.Tx, j *river.Job[job]) error {
	_, err := tx.Exec(ctx, "INSERT INTO effect (key, number) VALUES ($1, $2)", j.Args.Of, j.Args.Number)
	return err
}

// effects returns how often it was.
func (h *host) effects() (n int) {
	h.t.Helper()
	if err := h.pool.QueryRow(h.t.Context(), "SELECT count(*) FROM effect").Scan(&n); err != nil {
		h.t.Fatal(err)
	}
	return n
}

// TestCommit: what a job did is there if and only if River has it as completed.
func TestCommit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name              string
		commits, untagged bool
		redis             bool
	}{
		{"with the key", true, false, false},
		{"before the key", false, false, false},
		{"with the key in Redis", false, false, true},
		{"without a key", false, true, false},
	} {
		o := hostOptions{commits: c.commits, untagged: c.untagged}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.redis {
				o.redis = sharedRedis().URL()
			}
			t.Run("once", func(t *testing.T) {
				t.Parallel()
				o := o
				checked := make(chan struct{}, 1)
				o.work = func(ctx context.Context, h *host, j *river.Job[job]) error {
					fails := j.Attempt == 1
					err := Commit(ctx, j, func(ctx context.Context, tx pgx.Tx) error {
						if err := effect(ctx, tx, j); err != nil || !fails {
							return err
						}
						return errors.New("bad luck")
					})
					if err != nil {
						return err
					}
					if row, err := h.river.JobGet(context.WithoutCancel(ctx), j.ID); err != nil || row.State != rivertype.JobStateCompleted {
						t.Errorf("after Commit the job is %+v, %v", row, err)
					}
					checked <- struct{}{}
					return nil
				}
				h := newHost(t, o)
				row := h.insert("it", 1, nil)
				<-checked
				if row := h.await(row.ID, rivertype.JobStateCompleted); row.Attempt != 2 || h.effects() != 1 {
					t.Errorf("completed at the attempt %d, with %d effects", row.Attempt, h.effects())
				}
				eventually(t, time.Minute, "its place is given up", func() bool { return h.waiting("it") == 0 })
			})
			for state, set := range map[string]string{
				"completed": "state = 'completed', finalized_at = now()",
				"cancelled": "state = 'cancelled', finalized_at = now()",
				"rescued":   "state = 'retryable', scheduled_at = now() + interval '1 hour'",
				"deleted":   "",
			} {
				t.Run(state+" meanwhile", func(t *testing.T) {
					t.Parallel()
					o := o
					got := make(chan error, 1)
					o.work = func(ctx context.Context, h *host, j *river.Job[job]) error {
						err := Commit(ctx, j, func(ctx context.Context, tx pgx.Tx) error {
							statement := "UPDATE river_job SET " + set + " WHERE id = $1"
							if set == "" {
								statement = "DELETE FROM river_job WHERE id = $1"
							}
							if _, err := h.pool.Exec(ctx, statement, j.ID); err != nil {
								return err
							}
							return effect(ctx, tx, j)
						})
						got <- err
						return err
					}
					h := newHost(t, o)
					h.insert("it", 1, nil)
					if err := <-got; errors.Is(err, ErrOver) == (state == "completed") || err == nil != (state == "completed") {
						t.Errorf("Commit returned %v", err)
					}
					if n := h.effects(); n != 0 {
						t.Errorf("%d effects of a job that another delivery has done, or nobody wants", n)
					}
				})
			}
		})
	}
}
