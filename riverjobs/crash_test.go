package riverjobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/pgstore"
)

// Where children stop, and are killed. A worker stops in its first job, or in the one
// that the point names.
const (
	fetched       = "fetched"         // the turn was not asked for
	working       = "working"         // nothing was done
	inTransaction = "in transaction"  // the effect is in a transaction
	beforeCommit  = "before COMMIT"   // so is all the rest
	afterCommit   = "after COMMIT"    // the worker does not know
	effected      = "effected"        // the effect is there, without a transaction
	returned      = "returned"        // River has not stored the job's result
	putOff        = "put off"         // River has not stored the snooze
	placed        = "placed"          // the job has a place, and is not inserted
	beforeInsert  = "before a COMMIT" // the job and its place are in a transaction
)

// outerPoints are around the Mutex.
type outerPoints struct{ river.MiddlewareDefaults }

func (*outerPoints) Work(ctx context.Context, row *rivertype.JobRow, doInner func(context.Context) error) error {
	var args job
	if err := json.Unmarshal(row.EncodedArgs, &args); err != nil {
		return err
	}
	if args.Number == 1 {
		failpoint.Reach(fetched)
	}
	err := doInner(ctx)
	if _, snoozed := errors.AsType[*rivertype.JobSnoozeError](err); snoozed {
		failpoint.Reach(putOff)
	}
	if err == nil {
		failpoint.Reach(returned)
	}
	return err
}

// innerPoints are behind the Mutex.
type innerPoints struct{ river.MiddlewareDefaults }

func (*innerPoints) InsertMany(ctx context.Context, _ []*rivertype.JobInsertParams, doInner func(context.Context) ([]*rivertype.JobInsertResult, error)) ([]*rivertype.JobInsertResult, error) {
	failpoint.Reach(placed)
	return doInner(ctx)
}

// stopping makes transactions that stop around their COMMIT.
type stopping struct{ dibs.Transactor }

func (s stopping) Begin(ctx context.Context) (dibs.Transaction, error) {
	tx, err := s.Transactor.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &stoppingTransaction{tx}, nil
}

type stoppingTransaction struct{ dibs.Transaction }

func (s *stoppingTransaction) Commit(ctx context.Context, settlement dibs.Settlement) error {
	failpoint.Reach(beforeCommit)
	err := s.Transaction.Commit(ctx, settlement)
	failpoint.Reach(afterCommit)
	return err
}

// stoppingTx is pgstore.Tx for those.
func stoppingTx(ctx context.Context) (pgx.Tx, bool) {
	s, ok := dibs.TransactionFrom(ctx).(*stoppingTransaction)
	if !ok {
		return nil, false
	}
	return pgstore.Tx(dibs.WithTransaction(ctx, s.Transaction))
}

// workFirst stops all jobs but the first.
func workFirst(ctx context.Context, j *river.Job[job]) error {
	if j.Args.Number == 1 {
		failpoint.Reach(working)
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// workCommit is a job whose effect is committed with it.
func workCommit(ctx context.Context, _ *host, j *river.Job[job]) error {
	if err := workFirst(ctx, j); err != nil {
		return err
	}
	err := Commit(ctx, j, func(ctx context.Context, tx pgx.Tx) error {
		if err := effect(ctx, tx, j); err != nil {
			return err
		}
		failpoint.Reach(inTransaction)
		return nil
	})
	failpoint.Reach(afterCommit)
	return err
}

// workPlain is a job whose effect is not in a transaction.
func workPlain(ctx context.Context, h *host, j *river.Job[job]) error {
	if err := workFirst(ctx, j); err != nil {
		return err
	}
	if err := plainEffect(ctx, h, j); err != nil {
		return err
	}
	failpoint.Reach(effected)
	return nil
}

func plainEffect(ctx context.Context, h *host, j *river.Job[job]) error {
	_, err := h.pool.Exec(ctx, "INSERT INTO effect (key, number) VALUES ($1, $2)", j.Args.Of, j.Args.Number)
	return err
}

// TestKilledWorker: wherever a worker is killed, its job and those behind it run in
// their order afterwards; once each, if they commit.
func TestKilledWorker(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		work, point string
		outside     bool // the key is not in the transaction
		seats       int
		recovery    time.Duration // how long the others wait for a job whose worker died
		want        []int
	}{
		{"commit", fetched, false, 0, time.Hour, []int{1, 2, 3}},
		{"commit", working, false, 0, time.Hour, []int{1, 2, 3}},
		{"commit", inTransaction, false, 0, time.Hour, []int{1, 2, 3}},
		{"commit", beforeCommit, false, 0, time.Hour, []int{1, 2, 3}},
		{"commit", afterCommit, false, 0, time.Hour, []int{1, 2, 3}},
		// The job is done, but its key is not given up.
		{"commit", afterCommit, true, 0, 500 * time.Millisecond, []int{1, 2}},
		{"commit", returned, false, 0, time.Hour, []int{1, 2, 3}},
		{"stuck", putOff, false, -1, time.Hour, []int{1, 1, 2, 3}},
		{"plain", effected, false, 0, time.Hour, []int{1, 1, 2, 3}},
		// River alone would run it again, too.
		{"plain", returned, false, 0, time.Hour, []int{1, 2, 3, 1}},
	} {
		t.Run(fmt.Sprint(c.work, " ", c.point, " ", c.outside), func(t *testing.T) {
			t.Parallel()
			h := newHost(t, hostOptions{url: newDatabase(), idle: true})
			var ids []int64
			for n := 1; n <= slices.Max(c.want); n++ {
				ids = append(ids, h.insert("it", n, nil).ID)
			}
			child := startChild(t, c.point, childConfig{
				URL: h.url + "&application_name=child", Work: c.work, Outside: c.outside, Workers: 10, Seats: c.seats, TTL: time.Hour,
				Recovery: c.recovery, Patience: DefaultPatience, Timeout: time.Hour,
			})
			child.Await()
			if c.work == "stuck" { // another job was put off, perhaps before the first began
				eventually(t, "the first has had its effect", func() bool { return len(h.effects("it")) == 1 })
			}
			child.Kill()
			h.buryChild()
			newHost(t, hostOptions{
				url: h.url, commits: !c.outside, mutex: Options{Jobs: jobs.Options{Recovery: c.recovery, Hold: c.recovery}},
				work: func(ctx context.Context, h *host, j *river.Job[job]) error {
					if c.work == "commit" {
						return Commit(ctx, j, func(ctx context.Context, tx pgx.Tx) error { return effect(ctx, tx, j) })
					}
					return plainEffect(ctx, h, j)
				},
			})
			for _, id := range ids {
				h.await(id, rivertype.JobStateCompleted)
			}
			if got := h.effects("it"); !slices.Equal(got, c.want) {
				t.Errorf("the effects are %v, want %v", got, c.want)
			}
			if n := h.waiting("it"); n != 0 {
				t.Errorf("%d places are left", n)
			}
		})
	}
}

// buryChild does at once what takes its time after the child's death: the server hears
// of it, the lease of its key ends, and River gives its jobs to others.
func (h *host) buryChild() {
	h.t.Helper()
	eventually(h.t, "the server has heard of the child's death", func() bool {
		var n int
		err := h.pool.QueryRow(h.t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'child'").Scan(&n)
		return err == nil && n == 0
	})
	for _, statement := range []string{
		"UPDATE dibs_key SET ends = now() WHERE ends > now()",
		"UPDATE river_job SET state = 'available', scheduled_at = now() WHERE finalized_at IS NULL",
	} {
		if _, err := h.pool.Exec(h.t.Context(), statement); err != nil {
			h.t.Fatal(err)
		}
	}
}

// inserts are how children insert a job.
var inserts = map[string]func(context.Context, *host) error{
	"in a transaction": func(ctx context.Context, h *host) error {
		tx, err := h.pool.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := InsertTx(ctx, h.river, tx, job{Of: "it", Number: 1}, nil); err != nil {
			return err
		}
		failpoint.Reach(beforeInsert)
		return tx.Commit(ctx)
	},
	"alone": func(ctx context.Context, h *host) error {
		_, err := h.river.Insert(ctx, job{Of: "it", Number: 1}, nil)
		return err
	},
}

// TestKilledInserter: a process that is killed before its job is there leaves nothing in
// the way, or a place that is for no longer than Hold.
func TestKilledInserter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		insert, point string
		hold          time.Duration
		left          int // places
	}{
		{"in a transaction", beforeInsert, time.Hour, 0},
		{"alone", placed, 500 * time.Millisecond, 1},
	} {
		t.Run(c.insert, func(t *testing.T) {
			t.Parallel()
			var l journal
			h := newHost(t, hostOptions{
				mutex: Options{Jobs: jobs.Options{Hold: c.hold}},
				work: func(_ context.Context, _ *host, j *river.Job[job]) error {
					return l.run(j.Args.Number, func() error { return nil })
				},
			})
			child := startChild(t, c.point, childConfig{
				URL: h.url + "&application_name=child", Insert: c.insert, TTL: time.Hour, Recovery: c.hold, Patience: DefaultPatience,
			})
			child.Await()
			child.Kill()
			h.buryChild()
			if n := h.waiting("it"); n != c.left {
				t.Errorf("%d places are left, want %d", n, c.left)
			}
			h.await(h.insert("it", 2, nil).ID, rivertype.JobStateCompleted)
			l.check(t, 2)
		})
	}
}
