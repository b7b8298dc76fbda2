package riverjobs

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
)

type txKey struct{}

// In returns a context in which jobs that are inserted in the transaction take their
// places in it too, with Options.Reserver: both are there when it commits, and neither
// is when it is rolled back. It is for the Tx methods of River's client that have no
// function here, such as InsertManyFastTx.
func In(ctx context.Context, tx pgx.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// InsertTx is the client's InsertTx in the context that In returns.
func InsertTx(ctx context.Context, c *river.Client[pgx.Tx], tx pgx.Tx, args river.JobArgs, o *river.InsertOpts) (*rivertype.JobInsertResult, error) {
	return c.InsertTx(In(ctx, tx), tx, args, o)
}

// InsertManyTx is the client's InsertManyTx in the context that In returns.
func InsertManyTx(ctx context.Context, c *river.Client[pgx.Tx], tx pgx.Tx, params []river.InsertManyParams) ([]*rivertype.JobInsertResult, error) {
	return c.InsertManyTx(In(ctx, tx), tx, params)
}

// InsertMany implements rivertype.JobInsertMiddleware: it takes a place for each job
// that is to run as soon as it can, and gives it back if the job is not inserted, or
// is a duplicate. The errors are those of jobs.Mutex.Enqueue; nothing is inserted then.
func (m *Mutex) InsertMany(ctx context.Context, params []*rivertype.JobInsertParams, doInner func(context.Context) ([]*rivertype.JobInsertResult, error)) ([]*rivertype.JobInsertResult, error) {
	mine, notes, err := m.notes(params)
	if err != nil {
		return nil, err
	}
	if len(mine) == 0 {
		return doInner(ctx)
	}
	if tx, ok := ctx.Value(txKey{}).(pgx.Tx); ok && m.options.Reserver != nil {
		return m.insertIn(ctx, m.options.Reserver(tx), mine, notes, doInner)
	}
	tickets, err := m.jobs.EnqueueMany(ctx, places(mine, notes))
	if err != nil {
		return nil, err
	}
	inserted := false
	defer func() {
		if !inserted { // also when a middleware in between panics
			m.jobs.Cancel(ctx, tickets...)
		}
	}()
	if err := annotate(mine, notes, tickets); err != nil {
		return nil, err
	}
	results, err := doInner(ctx)
	if inserted = err == nil; inserted {
		if skipped := skippedOf(results, tickets); len(skipped) > 0 {
			var back []string
			for t := range skipped {
				back = append(back, t)
			}
			m.jobs.Cancel(ctx, back...)
		}
	}
	return results, err
}

// notes returns the jobs that have a key, and what is to be noted of them.
func (m *Mutex) notes(params []*rivertype.JobInsertParams) (mine []*rivertype.JobInsertParams, notes []note, err error) {
	for _, p := range params {
		find, ok := m.keys[p.Kind]
		if !ok {
			continue
		}
		key, err := find(p.Args, p.EncodedArgs)
		if err != nil {
			return nil, nil, fmt.Errorf("riverjobs: the key of a job of kind %q: %w", p.Kind, err)
		}
		mine = append(mine, p)
		notes = append(notes, note{Key: key})
	}
	return mine, notes, nil
}

// places returns for which keys places are to be taken: none for a job that is to run
// later, as it would be in the way until then.
func places(mine []*rivertype.JobInsertParams, notes []note) []string {
	keys := make([]string, len(mine))
	for i, p := range mine {
		if p.State == rivertype.JobStateAvailable {
			keys[i] = notes[i].Key
		}
	}
	return keys
}

// annotate writes the notes, with the tickets, into the jobs' metadata.
func annotate(mine []*rivertype.JobInsertParams, notes []note, tickets []string) (err error) {
	for i, p := range mine {
		notes[i].Ticket = tickets[i]
		if p.Metadata, err = writeNote(p.Metadata, notes[i]); err != nil {
			return err
		}
	}
	return nil
}

// skippedOf returns the tickets that are in no job, because there was one like it
// already.
func skippedOf(results []*rivertype.JobInsertResult, tickets []string) map[string]bool {
	skipped := false
	for _, r := range results {
		skipped = skipped || r != nil && r.UniqueSkippedAsDuplicate
	}
	if !skipped {
		return nil // InsertManyFast has no results, and inserts all or none
	}
	left := map[string]bool{}
	for _, t := range tickets {
		if t != "" {
			left[t] = true
		}
	}
	for _, r := range results {
		if r != nil && r.Job != nil {
			delete(left, readNote(r.Job.Metadata).Ticket)
		}
	}
	return left
}

// insertIn inserts jobs and then takes their places, all in one transaction.
func (m *Mutex) insertIn(ctx context.Context, r dibs.Reserver, mine []*rivertype.JobInsertParams, notes []note, doInner func(context.Context) ([]*rivertype.JobInsertResult, error)) ([]*rivertype.JobInsertResult, error) {
	tickets := make([]string, len(mine))
	claims := make([]collector, len(mine))
	var err error
	for i, key := range places(mine, notes) {
		if tickets[i], err = m.jobs.EnqueueIn(ctx, &claims[i], key); err != nil {
			return nil, err
		}
	}
	if err := annotate(mine, notes, tickets); err != nil {
		return nil, err
	}
	results, err := doInner(ctx)
	if err != nil {
		return results, err
	}
	skipped := skippedOf(results, tickets)
	var all collector
	for i := range claims {
		if !skipped[tickets[i]] {
			all = append(all, claims[i]...)
		}
	}
	if len(all) == 0 {
		return results, nil
	}
	return results, r.Reserve(ctx, all)
}

// collector remembers what is to be reserved, so that all of it is one statement.
type collector []dibs.Claim

// Reserve implements dibs.Reserver.
func (c *collector) Reserve(_ context.Context, claims []dibs.Claim) error {
	*c = append(*c, claims...)
	return nil
}
