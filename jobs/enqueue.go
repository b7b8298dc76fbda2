package jobs

import (
	"context"
	"sync"

	"github.com/dibs-go/dibs"
)

// Ticket is the reserved place of a job that will be enqueued.
type Ticket struct {
	// Text travels with the job: printable ASCII without spaces. "": the job has no
	// place.
	Text string
	// Parked says that Options.Ahead jobs of the key come before this one, including
	// running ones. So a queue that can park jobs should not give it to a worker yet.
	// Always false with a Limit, because a worker must watch that.
	Parked bool
}

// Enqueue reserves the place of a job before it is enqueued, and returns the text of its
// Ticket. It reads the job's Key, and its Kind and ID, if they are known, to name the job to
// operators. The text is "" if the job needs no place: its key is "", Unordered is set, or
// the policy has no order. Do not call it for a job with a later start, because its place
// would block the key until then.
//
// If the job is not enqueued after all, call Cancel; otherwise the place blocks the key
// for at most Options.Grace. The errors are those of dibs.Client.Reserve. After an error
// do not enqueue the job, because it would lose its order.
func (m *Mutex) Enqueue(ctx context.Context, j Job) (string, error) {
	t, err := m.take(ctx, j)
	return t.Text, err
}

// take is Enqueue with the whole Ticket.
func (m *Mutex) take(ctx context.Context, j Job) (Ticket, error) {
	ahead := 0
	text, err := m.enqueue(ctx, j, func(ctx context.Context, o *dibs.PlaceOptions) (dibs.Place, error) {
		p, s, err := m.client.Reserve(ctx, j.Key, m.options.PlaceTTL, o)
		ahead = s.Ahead
		return p, err
	})
	// The store counts the places of waiting jobs, not of running ones.
	parked := text != "" && m.options.Limit == 0 && ahead >= max(m.options.Ahead-m.options.Permits, 1)
	return Ticket{Text: text, Parked: parked}, err
}

// EnqueueIn is Enqueue in the transaction that enqueues the job: the place exists when
// that commits. Jobs run in the order in which their places were reserved, whichever
// transaction commits first.
func (m *Mutex) EnqueueIn(ctx context.Context, r dibs.Reserver, j Job) (string, error) {
	return m.enqueue(ctx, j, func(ctx context.Context, o *dibs.PlaceOptions) (dibs.Place, error) {
		return m.client.ReserveIn(ctx, r, j.Key, m.options.PlaceTTL, o)
	})
}

func (m *Mutex) enqueue(ctx context.Context, j Job, reserve func(context.Context, *dibs.PlaceOptions) (dibs.Place, error)) (string, error) {
	if j.Key == "" || !m.options.Policy.queues() || m.options.Unordered {
		return "", nil
	}
	var t ticket
	var err error
	if m.options.Policy.Replaces() {
		if t.number, err = m.number(ctx, j.Key); err != nil {
			return "", err
		}
	}
	t.place, err = reserve(ctx, &dibs.PlaceOptions{Grace: m.options.Grace, Label: j.label()})
	if err != nil {
		return "", err
	}
	return t.String(), nil
}

// manyKeys bounds the keys for which EnqueueMany reserves places at once.
const manyKeys = 256

// EnqueueMany is Enqueue for many jobs, in their order. After an error it has given all
// places back.
func (m *Mutex) EnqueueMany(ctx context.Context, jobs []Job) ([]Ticket, error) {
	tickets := make([]Ticket, len(jobs))
	same := map[string][]int{}
	for i, j := range jobs {
		same[j.Key] = append(same[j.Key], i)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	room := make(chan struct{}, manyKeys)
	for _, numbers := range same {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			for _, i := range numbers {
				t, err := m.take(ctx, jobs[i])
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

// Cancel gives back the places of jobs that were not enqueued, or were removed from their
// queue. It ignores the end of ctx, takes at most 5 s, and ignores errors: a place that
// was not given back blocks the key for at most its Grace. Empty tickets are ignored.
func (m *Mutex) Cancel(ctx context.Context, tickets ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range tickets {
		if t, err := parseTicket(s); s != "" && err == nil {
			wg.Go(func() { _ = m.client.CancelPlace(ctx, t.place) })
		}
	}
	wg.Wait()
}
