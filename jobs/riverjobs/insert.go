package riverjobs

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
)

type txKey struct{}

// In returns a context in which inserted jobs reserve their places in the transaction,
// with Options.Reserver: job and place exist if it commits, and neither if it rolls back.
// Use it for Tx methods of River's client that have no function in this package.
func In(ctx context.Context, tx pgx.Tx) context.Context { return context.WithValue(ctx, txKey{}, tx) }

// InsertTx is the client's InsertTx in the context of In.
func InsertTx(ctx context.Context, c *river.Client[pgx.Tx], tx pgx.Tx, args river.JobArgs, o *river.InsertOpts) (*rivertype.JobInsertResult, error) {
	return c.InsertTx(In(ctx, tx), tx, args, o)
}

// InsertManyTx is the client's InsertManyTx in the context of In.
func InsertManyTx(ctx context.Context, c *river.Client[pgx.Tx], tx pgx.Tx, params []river.InsertManyParams) ([]*rivertype.JobInsertResult, error) {
	return c.InsertManyTx(In(ctx, tx), tx, params)
}

// InsertMany implements rivertype.JobInsertMiddleware. It reserves a place for each job
// that should run at once, and parks all but the first jobs of a key. It gives back the
// places of jobs that were not inserted or are duplicates. The errors are those of
// jobs.Mutex.Enqueue; then no job is inserted.
func (m *Mutex) InsertMany(ctx context.Context, params []*rivertype.JobInsertParams, doInner func(context.Context) ([]*rivertype.JobInsertResult, error)) (results []*rivertype.JobInsertResult, err error) {
	var mine []*rivertype.JobInsertParams
	var keys []string
	var places []jobs.Job // a scheduled job gets no place, because that would block its key
	for _, p := range params {
		find, ok := m.find(p.Kind)
		if !ok {
			continue
		}
		key, err := find(p.Args, p.EncodedArgs)
		if err != nil {
			return nil, fmt.Errorf("riverjobs: the key of a job of kind %q: %w", p.Kind, err)
		}
		mine, keys, places = append(mine, p), append(keys, key), append(places, jobs.Job{Kind: p.Kind, Key: key})
		if p.State != rivertype.JobStateAvailable {
			places[len(places)-1].Key = ""
		}
	}
	tx, in := ctx.Value(txKey{}).(pgx.Tx)
	in = in && m.options.Reserver != nil
	var tickets []jobs.Ticket
	claims := make([]collector, len(mine))
	if in {
		tickets, err = m.enqueueIn(ctx, claims, places)
	} else {
		tickets, err = m.jobs.EnqueueMany(ctx, places)
	}
	if err != nil {
		return nil, err
	}
	inserted := false
	defer func() {
		if !inserted && !in { // even when a middleware in between panics
			m.jobs.Cancel(ctx, texts(tickets)...)
		}
	}()
	for i, p := range mine {
		if tickets[i].Parked {
			p.State = rivertype.JobStatePending
		}
		if p.Metadata, err = writeNote(p.Metadata, note{Key: keys[i], Ticket: tickets[i].Text}); err != nil {
			return nil, err
		}
	}
	results, err = doInner(ctx)
	if inserted = err == nil; !inserted {
		return results, err
	}
	skipped := skippedOf(results, tickets)
	if in {
		return results, m.reserveIn(ctx, tx, claims, places, tickets, skipped, results)
	}
	if len(skipped) > 0 {
		m.jobs.Cancel(ctx, skipped...)
	}
	return results, nil
}

// enqueueIn returns tickets for places that reserveIn will reserve. All jobs start
// parked.
func (m *Mutex) enqueueIn(ctx context.Context, claims []collector, places []jobs.Job) (tickets []jobs.Ticket, err error) {
	tickets = make([]jobs.Ticket, len(places))
	for i, job := range places {
		if tickets[i].Text, err = m.jobs.EnqueueIn(ctx, &claims[i], job); err != nil {
			return nil, err
		}
		tickets[i].Parked = tickets[i].Text != "" && m.options.Jobs.Limit == 0
	}
	return tickets, nil
}

// reserveIn reserves the places in the transaction of the insert, and makes the first
// jobs runnable. It comes last, because it locks the keys until the transaction ends.
func (m *Mutex) reserveIn(ctx context.Context, tx pgx.Tx, claims []collector, places []jobs.Job, tickets []jobs.Ticket, skipped []string, results []*rivertype.JobInsertResult) error {
	var all collector
	var keys, placed []string
	for i, t := range tickets {
		if t.Text != "" && !slices.Contains(skipped, t.Text) {
			all, keys, placed = append(all, claims[i]...), append(keys, places[i].Key), append(placed, t.Text)
		}
	}
	if len(all) > 0 {
		if err := m.options.Reserver(tx).Reserve(ctx, all); err != nil {
			return err
		}
	}
	if len(placed) == 0 {
		return nil
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	runnable, err := m.promote(ctx, tx, keys, make([]int64, len(keys)), placed)
	slices.Sort(runnable)
	for _, r := range results {
		if r != nil && r.Job != nil {
			if _, found := slices.BinarySearch(runnable, r.Job.ID); found {
				r.Job.State = rivertype.JobStateAvailable
			}
		}
	}
	return err
}

func texts(tickets []jobs.Ticket) (all []string) {
	for _, t := range tickets {
		all = append(all, t.Text)
	}
	return all
}

// skippedOf returns the tickets of jobs that were skipped as duplicates.
func skippedOf(results []*rivertype.JobInsertResult, tickets []jobs.Ticket) []string {
	there := map[string]bool{"": true}
	skipped := false // InsertManyFast has no results, and inserts all or none
	for _, r := range results {
		if r != nil && r.Job != nil {
			there[readMetadata(r.Job.Metadata).Dibs.Ticket] = true
			skipped = skipped || r.UniqueSkippedAsDuplicate
		}
	}
	if !skipped {
		return nil
	}
	return slices.DeleteFunc(texts(tickets), func(t string) bool { return there[t] })
}

// collector collects reservations, so that they become one statement.
type collector []store.Claim

// Reserve implements dibs.Reserver.
func (c *collector) Reserve(_ context.Context, claims []store.Claim) error {
	*c = append(*c, claims...)
	return nil
}
