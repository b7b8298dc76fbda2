package jobs

import (
	"context"
	"sync"

	"github.com/dibs-go/dibs"
)

// Ticket is the place of a job that is about to be enqueued.
type Ticket struct {
	// Text travels with the job: printable ASCII without spaces; "" where there is no
	// place.
	Text string
	// Parked says that Options.Ahead jobs of the key come before it, those that run
	// included, so that a queue that can do so should not give it to a worker yet. Never
	// with a Limit, which a worker has to watch.
	Parked bool
}

// Enqueue takes the place of a job that is about to be enqueued, and returns the
// text of its Ticket. It is "" where there is nothing to take: for a key that is "", with
// Unordered, and with the policies that have no order. A job that is to run at a later
// time gets none: its place would be in the way until then.
//
// If the job is not enqueued after all, Cancel gives the place back at once, and
// otherwise it is in the way for Options.Hold at most. The errors are those
// of dibs.Client.Reserve; the job should not be enqueued then, as its order would be
// lost.
func (m *Mutex) Enqueue(ctx context.Context, key string) (string, error) {
	t, err := m.take(ctx, key)
	return t.Text, err
}

// take is Enqueue.
func (m *Mutex) take(ctx context.Context, key string) (Ticket, error) {
	ahead := 0
	text, err := m.enqueue(ctx, key, func(ctx context.Context, o *dibs.AcquireOptions) (dibs.Place, error) {
		p, s, err := m.client.Reserve(ctx, key, m.options.PlaceTTL, o)
		ahead = s.Ahead
		return p, err
	})
	// The store counts the places of the jobs that wait, and not of those that run.
	parked := text != "" && m.options.Limit == 0 && ahead >= max(m.options.Ahead-m.options.Permits, 1)
	return Ticket{Text: text, Parked: parked}, err
}

// EnqueueIn is Enqueue in the transaction in which the job is enqueued: the place is
// there if and when that commits, and jobs run in the order in which their places were
// taken, whenever the transactions commit.
func (m *Mutex) EnqueueIn(ctx context.Context, r dibs.Reserver, key string) (string, error) {
	return m.enqueue(ctx, key, func(ctx context.Context, o *dibs.AcquireOptions) (dibs.Place, error) {
		return m.client.ReserveIn(ctx, r, key, m.options.PlaceTTL, o)
	})
}

func (m *Mutex) enqueue(ctx context.Context, key string, reserve func(context.Context, *dibs.AcquireOptions) (dibs.Place, error)) (string, error) {
	if key == "" || !m.options.Policy.queues() || m.options.Unordered {
		return "", nil
	}
	var t ticket
	var err error
	if m.options.Policy == Replace {
		if t.number, err = m.number(ctx, key); err != nil {
			return "", err
		}
	}
	t.place, err = reserve(ctx, &dibs.AcquireOptions{Hold: m.options.Hold})
	if err != nil {
		return "", err
	}
	return t.String(), nil
}

// manyKeys is for how many keys at once EnqueueMany takes places.
const manyKeys = 256

// EnqueueMany is Enqueue for many jobs, in their order. If it returns an error, no
// place was taken, or what was is given back.
func (m *Mutex) EnqueueMany(ctx context.Context, keys []string) ([]Ticket, error) {
	tickets := make([]Ticket, len(keys))
	same := map[string][]int{}
	for i, key := range keys {
		same[key] = append(same[key], i)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	room := make(chan struct{}, manyKeys)
	for key, jobs := range same {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			for _, i := range jobs {
				t, err := m.take(ctx, key)
				if err != nil {
					cancel(err)
					return
				}
				tickets[i] = t
			}
		})
	}
	wg.Wait()
	if ctx.Err() == nil {
		return tickets, nil
	}
	var taken []string
	for _, t := range tickets {
		taken = append(taken, t.Text)
	}
	m.Cancel(ctx, taken...)
	return nil, context.Cause(ctx)
}

// Cancel gives the places of jobs back that were not enqueued, or were taken out of
// their queue. It does not end with ctx, takes 5 s at most, and needs no answer: a
// place that is not given back is in the way for its Hold at most. An empty
// ticket is none.
func (m *Mutex) Cancel(ctx context.Context, tickets ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settlePatience)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range tickets {
		if t, err := parseTicket(s); s != "" && err == nil {
			wg.Go(func() { _ = m.client.CancelPlace(ctx, t.place) })
		}
	}
	wg.Wait()
}
