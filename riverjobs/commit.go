package riverjobs

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/jobs"
)

//go:embed sql/lock.sql
var lockSQL string

// ErrOver says of a job whose transaction was to be committed that River has it as over, or gives
// it to another worker: it was rescued, cancelled or deleted meanwhile. The transaction was rolled
// back.
var ErrOver = errors.New("riverjobs: River takes the job for one that does not run any more; what it did was rolled back")

// errDone: another delivery of the job has committed.
var errDone = errors.New("riverjobs: the job was completed by another delivery")

// Commit runs fn in a transaction, and commits what it did together with River's note that the job
// is completed: exactly once, whatever crashes, and however often River delivers the job. With
// Options.Transactor the end of the job's key is committed too, so that all is rolled back when the
// key was lost meanwhile. Without Commit, River notes a job as completed up to 250 ms after it has
// returned, and a crash in between runs it again, behind those that came after it.
//
// It is called in a worker, as the last thing: with Options.Transactor the context has ended after
// it, as the job's key has, and fn may be called again when the transaction fell victim to a
// conflict. It returns what fn returned, ErrOver, or why it could not be committed; nil also when
// another delivery of the job has completed it before.
func Commit[A river.JobArgs](ctx context.Context, job *river.Job[A], fn func(ctx context.Context, tx pgx.Tx) error) error {
	m, ok := ctx.Value(mutexKey{}).(*Mutex)
	if !ok {
		return errors.New("riverjobs: Commit is for workers of a client for whose Config a Mutex was made")
	}
	inner := func(ctx context.Context, tx pgx.Tx) error {
		if err := fn(ctx, tx); err != nil {
			return err
		}
		return complete(ctx, m.schema, tx, job)
	}
	var err error
	if r, ok := jobs.FromContext(ctx); ok && r.Lease != nil && m.options.Transactor != nil {
		err = jobs.Commit(ctx, m.options.Transactor, func(ctx context.Context) error {
			tx, ok := m.options.Tx(ctx)
			if !ok {
				return errors.New("riverjobs: Options.Tx does not find the transactions that Options.Transactor makes: give pgstore.Tx and pgstore's Store.Transactions")
			}
			return inner(ctx, tx)
		})
	} else {
		err = pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) error { return inner(ctx, tx) })
	}
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

// complete notes in the transaction that the job is completed, if it is still to be done: River's
// own function does not say that it was not.
func complete[A river.JobArgs](ctx context.Context, schema string, tx pgx.Tx, job *river.Job[A]) error {
	state := "deleted"
	if err := tx.QueryRow(ctx, in(schema, lockSQL), job.ID).Scan(&state); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	switch rivertype.JobState(state) {
	case rivertype.JobStateRunning:
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	case rivertype.JobStateCompleted:
		return errDone
	case rivertype.JobStateCancelled, rivertype.JobStateDiscarded, "deleted":
		return river.JobCancel(fmt.Errorf("%w: it is %s", ErrOver, state))
	default:
		return fmt.Errorf("%w: it is %s", ErrOver, state)
	}
}
