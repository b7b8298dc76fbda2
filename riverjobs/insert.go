package riverjobs

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

type txKey struct{}

// In returns a context in which jobs that are inserted in the transaction take their places in it
// too, with Options.Reserver: both are there when it commits, and neither is when it is rolled
// back. It is for the Tx methods of River's client that have no function here.
func In(ctx context.Context, tx pgx.Tx) context.Context { return context.WithValue(ctx, txKey{}, tx) }

// InsertTx is the client's InsertTx in the context that In returns.
func InsertTx(ctx context.Context, c *river.Client[pgx.Tx], tx pgx.Tx, args river.JobArgs, o *river.InsertOpts) (*rivertype.JobInsertResult, error) {
	return c.InsertTx(In(ctx, tx), tx, args, o)
}

// InsertManyTx is the client's InsertManyTx in the context that In returns.
func InsertManyTx(ctx context.Context, c *river.Client[pgx.Tx], tx pgx.Tx, params []river.InsertManyParams) ([]*rivertype.JobInsertResult, error) {
	return c.InsertManyTx(In(ctx, tx), tx, params)
}

// InsertMany implements rivertype.JobInsertMiddleware: it takes a place for each job that is to run
// as soon as it can, parks all but the first ones of a key, and gives the place back if the job is
// not inserted, or is a duplicate. The errors are those of jobs.Mutex.Enqueue; nothing is inserted
// then.
func (m *Mutex) InsertMany(ctx context.Context, params []*rivertype.JobInsertParams, doInner func(context.Context) ([]*rivertype.JobInsertResult, error)) (results []*rivertype.JobInsertResult, err error) {
	var mine []*rivertype.JobInsertParams
	var keys, places []string // a job for later gets no place, which would be in the way until then
	for _, p := range params {
		find, ok := m.find(p.Kind)
		if !ok {
			continue
		}
		key, err := find(p.Args, p.EncodedArgs)
		if err != nil {
			return nil, fmt.Errorf("riverjobs: the key of a job of kind %q: %w", p.Kind, err)
		}
		mine, keys, places = append(mine, p), append(keys, key), append(places, key)
		if p.State != rivertype.JobStateAvailable {
			places[len(places)-1] = ""
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
		if !inserted && !in { // also when a middleware in between panics
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

// enqueueIn returns tickets for places that the claims are to take later: all of them parked.
func (m *Mutex) enqueueIn(ctx context.Context, claims []collector, places []string) (tickets []jobs.Ticket, err error) {
	tickets = make([]jobs.Ticket, len(places))
	for i, key := range places {
		if tickets[i].Text, err = m.jobs.EnqueueIn(ctx, &claims[i], key); err != nil {
			return nil, err
		}
		tickets[i].Parked = tickets[i].Text != "" && m.options.Jobs.Limit == 0
	}
	return tickets, nil
}

// reserveIn takes the places of jobs in the transaction that has inserted them, and makes the first
// ones runnable. It comes last because it locks the keys until the transaction ends.
func (m *Mutex) reserveIn(ctx context.Context, tx pgx.Tx, claims []collector, places []string, tickets []jobs.Ticket, skipped []string, results []*rivertype.JobInsertResult) error {
	var all collector
	var keys, placed []string
	for i, t := range tickets {
		if t.Text != "" && !slices.Contains(skipped, t.Text) {
			all, keys, placed = append(all, claims[i]...), append(keys, places[i]), append(placed, t.Text)
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

// skippedOf returns the tickets that are in no job, because there was one like it already.
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

// collector remembers what is to be reserved, so that all of it is one statement.
type collector []dibs.Claim

// Reserve implements dibs.Reserver.
func (c *collector) Reserve(_ context.Context, claims []dibs.Claim) error {
	*c = append(*c, claims...)
	return nil
}
