package sim

import (
	"context"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
)

// recorder writes down what a process asks the store, and what it hears.
type recorder struct {
	dibs.Store
	life *life
	tape *tape

	mu     sync.Mutex
	claims map[dibs.Token]asked
}

// asked is a token's last claim and when its first was made.
type asked struct {
	event history.Event
	first time.Duration
}

// newRecorder wraps a process's way to the store.
func newRecorder(l *life, s dibs.Store) dibs.Store {
	r := &recorder{Store: s, life: l, tape: l.process.world.tape, claims: map[dibs.Token]asked{}}
	switch n := s.(type) {
	case dibs.GrantNotifier:
		return &grantRecorder{notifyingRecorder{r, n}, n}
	case dibs.Notifier:
		return &notifyingRecorder{r, n}
	}
	return r
}

// Batching implements dibs.Batcher.
func (r *recorder) Batching() dibs.Batching {
	if b, ok := r.Store.(dibs.Batcher); ok {
		return b.Batching()
	}
	return dibs.Batching{}
}

// Claim implements dibs.Store.
func (r *recorder) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	return record(ctx, r, claims, answers, r.Store.Claim,
		func(i int) history.Event {
			e := r.tape.claim(&claims[i])
			r.remember(claims[i].Token, e)
			return e
		},
		func(i int, e *history.Event) { answered(e, &answers[i]) })
}

// Renew implements dibs.Store.
func (r *recorder) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	return record(ctx, r, renewals, errs, r.Store.Renew,
		func(i int) history.Event { return r.tape.renewal(&renewals[i]) },
		func(i int, e *history.Event) { e.Error = failed(errs[i]) })
}

// Settle implements dibs.Store.
func (r *recorder) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	return record(ctx, r, settlements, errs, r.Store.Settle,
		func(i int) history.Event { return r.tape.settlement(&settlements[i]) },
		func(i int, e *history.Event) { e.Error = failed(errs[i]) })
}

// record makes a call and writes it down. What a process that was killed does is not.
func record[Q, A any](ctx context.Context, r *recorder, qs []Q, as []A, call func(context.Context, []Q, []A) error,
	event func(int) history.Event, answer func(int, *history.Event)) error {
	if r.life.isDead() {
		return errReset
	}
	first := r.tape.call(r.life, len(qs), event)
	err := call(ctx, qs, as)
	if r.life.isDead() {
		return errReset
	}
	r.tape.answer(first, len(qs), func(i int, e *history.Event) {
		if err != nil {
			e.Error, e.Text = history.Unknown, err.Error()
			return
		}
		answer(i, e)
	})
	return err
}

// remember remembers a token's claim.
func (r *recorder) remember(t dibs.Token, e history.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.claims[t]
	if !ok {
		c.first = r.tape.now()
	}
	c.event = e
	r.claims[t] = c
}

// notifyingRecorder is a recorder of a store that wakes waiters.
type notifyingRecorder struct {
	*recorder
	dibs.Notifier
}

// grantRecorder is a recorder of a store that tells grants.
type grantRecorder struct {
	notifyingRecorder
	store dibs.GrantNotifier
}

// NotifyGrants implements dibs.GrantNotifier.
func (r *grantRecorder) NotifyGrants(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	return r.store.NotifyGrants(func(t dibs.Token, a dibs.Answer) {
		if a.State == dibs.Granted && !r.life.isDead() {
			r.told(t, a)
		}
		wake(t, a)
	})
}

// told writes down a grant that was told.
func (r *grantRecorder) told(t dibs.Token, a dibs.Answer) {
	r.mu.Lock()
	c, ok := r.claims[t]
	r.mu.Unlock()
	if !ok {
		return // another process's
	}
	e := c.event
	e.Kind, e.Process, e.Life = history.Told, r.life.process.number, r.life.number
	e.TTL = dibs.Turn
	answered(&e, &a)
	r.tape.since(c.first, e)
}
