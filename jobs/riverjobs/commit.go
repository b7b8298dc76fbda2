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

// ErrOver says that River no longer counts the job as running, or has given it to another
// worker: it was rescued, cancelled or deleted. The transaction was rolled back.
var ErrOver = errors.New("riverjobs: River no longer counts the job as running, so its transaction was rolled back")

// errDone: another delivery of the job has completed it.
var errDone = errors.New("riverjobs: the job was completed by another delivery")

// Commit runs fn in a transaction, and commits it together with River's completion of the
// job: exactly once, whatever crashes, and however often River delivers the job. With
// Options.Transactor it also ends the job's key in that transaction, so everything is
// rolled back if the key was lost. Without Commit, River completes a job up to 250 ms
// after it returned. A crash in that time runs it again, after the jobs that came next.
//
// Call it last in a worker. With Options.Transactor the context has ended after it,
// because the key has, and fn may run again after a conflict. It returns fn's error,
// ErrOver, or the error of the commit; and nil when another delivery has completed the
// job.
func Commit[A river.JobArgs](ctx context.Context, job *river.Job[A], fn func(ctx context.Context, tx pgx.Tx) error) error {
	if fn == nil {
		return errors.New("riverjobs: Commit was given no function; pass the function that runs in the transaction")
	}
	m, ok := ctx.Value(mutexKey{}).(*Mutex)
	if !ok {
		return errors.New("riverjobs: Commit was called outside a worker of a client with a Mutex; see Configure")
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
				return errors.New("riverjobs: Options.Tx does not find the transactions of Options.Transactor: use pgstore.Tx and pgstore's Store.Transactions")
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

// complete completes the job in the transaction, if it is running. It checks that first,
// because River's function does not.
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
