package riverjobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestOnce: a second delivery of a job that is done does nothing.
func TestOnce(t *testing.T) {
	t.Parallel()
	var l journal
	h := newHost(t, hostOptions{work: l.noted(), mutex: Options{Jobs: jobs.Options{Once: time.Hour}}, river: river.Config{FetchPollInterval: 50 * time.Millisecond}})
	row := h.insert("it", 1, nil)
	h.await(row.ID, rivertype.JobStateCompleted)
	h.must(h.river.JobRetry(t.Context(), row.ID))
	testkit.Eventually(t, "it was delivered again", func() bool { return h.mutex.Stats().Remembered == 1 })
	h.await(h.insert("it", 2, nil).ID, rivertype.JobStateCompleted)
	l.check(t, 1, 2)
}

// TestCommit: what a job did is there if and only if River has it as completed.
func TestCommit(t *testing.T) {
	t.Parallel()
	// What happens to a job before it commits.
	meanwhile := map[string]string{
		"completed": "UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id = $1",
		"cancelled": "UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE id = $1",
		"rescued":   "UPDATE river_job SET state = 'retryable', scheduled_at = now() + interval '1 hour' WHERE id = $1",
		"deleted":   "DELETE FROM river_job WHERE id = $1",
	}
	elsewhere, err := memstore.New(nil)
	testkit.Must(t, err)
	for name, o := range map[string]hostOptions{
		"with the key": {commits: true}, "before the key": {}, "with the key elsewhere": {keys: elsewhere}, "without a key": {untagged: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := map[string]chan error{"once": make(chan error, 2)}
			for of := range meanwhile {
				got[of] = make(chan error, 1)
			}
			o.work = func(ctx context.Context, h *host, j *river.Job[job]) error {
				err := Commit(ctx, j, func(ctx context.Context, tx pgx.Tx) error {
					if statement := meanwhile[j.Args.Of]; statement != "" {
						if _, err := h.pool.Exec(ctx, statement, j.ID); err != nil {
							return err
						}
					}
					if err := effect(ctx, tx, j); err != nil || j.Args.Of != "once" || j.Attempt > 1 {
						return err
					}
					return errors.New("bad luck")
				})
				if err == nil && j.Args.Of == "once" {
					if row, err := h.river.JobGet(context.WithoutCancel(ctx), j.ID); err != nil || row.State != rivertype.JobStateCompleted {
						t.Errorf("after Commit the job is %+v, %v", row, err)
					}
				}
				got[j.Args.Of] <- err
				return err
			}
			h := newHost(t, o)
			for of := range meanwhile {
				h.insert(of, 1, nil)
				err := <-got[of]
				if errors.Is(err, ErrOver) == (of == "completed") || err == nil != (of == "completed") || len(h.effects(of)) > 0 {
					t.Errorf("%s meanwhile: Commit returned %v, and the effects are %v", of, err, h.effects(of))
				}
			}
			once := h.insert("once", 1, nil)
			if first, second := <-got["once"], <-got["once"]; first == nil || second != nil {
				t.Errorf("Commit returned %v, and then %v", first, second)
			}
			if row := h.await(once.ID, rivertype.JobStateCompleted); row.Attempt != 2 || len(h.effects("once")) != 1 {
				t.Errorf("completed at the attempt %d, with the effects %v", row.Attempt, h.effects("once"))
			}
			testkit.Eventually(t, "its place is given up", func() bool { return h.waiting("once") == 0 })
		})
	}
}

// A missing function is found before a transaction begins.
func TestCommitNothing(t *testing.T) {
	t.Parallel()
	if err := Commit[job](t.Context(), nil, nil); err == nil || err.Error() != "riverjobs: Commit was given no function; pass the function that runs in the transaction" {
		t.Error(err)
	}
}
