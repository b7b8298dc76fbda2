package history

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"sync"

	"github.com/dibs-go/dibs/store"
)

// Record returns a store that does what s does, and writes every call and answer to w. It is a
// store.Notifier if s is, and batches as s does. It is not a store.Inspector. failed, if not nil,
// gets each error of a call or an element, from the goroutine of the call.
func Record(s store.Store, w *Writer, failed func(error)) store.Store {
	if failed == nil {
		failed = func(error) {}
	}
	r := &recorder{store: s, w: w, failed: failed, waiting: map[store.Token]Event{}, tokens: map[string]string{}}
	if n, ok := s.(store.Notifier); ok {
		return &notifier{r, n}
	}
	return r
}

// Token returns the token of the lease with that ID, as events have it, if a store that Record
// returned has granted it and it is not settled yet; otherwise "".
func Token(s store.Store, id string) string {
	r := recorderOf(s)
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tokens[id]
}

// recorderOf returns what Record returned; nil for any other store.
func recorderOf(s store.Store) *recorder {
	switch r := s.(type) {
	case *recorder:
		return r
	case *notifier:
		return r.recorder
	}
	return nil
}

// recorder is a store that writes a history.
type recorder struct {
	store  store.Store
	w      *Writer
	failed func(error)

	mu sync.Mutex
	// waiting are the first claims of tokens that may get a pushed grant. They stay, because a
	// grant may arrive after its token was settled.
	waiting map[store.Token]Event
	// tokens are the granted ones, by their IDs.
	tokens map[string]string
}

var (
	_ store.Store    = (*recorder)(nil)
	_ store.Batcher  = (*recorder)(nil)
	_ store.Notifier = (*notifier)(nil)
)

// Batching implements store.Batcher: a store that says nothing wants the default, which is
// the zero Batching.
func (r *recorder) Batching() store.Batching {
	if b, ok := r.store.(store.Batcher); ok {
		return b.Batching()
	}
	return store.Batching{}
}

// Claim implements store.Store.
func (r *recorder) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	return record(r, claims, OfClaim, func(events []Event) error {
		r.join(claims, events)
		return r.store.Claim(ctx, claims, answers)
	}, func(i int, e *Event) error {
		e.Answer(&answers[i])
		r.granted(claims[i].Token, &answers[i])
		return answers[i].Err
	})
}

// Renew implements store.Store.
func (r *recorder) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	return record(r, renewals, OfRenewal, func([]Event) error {
		return r.store.Renew(ctx, renewals, errs)
	}, func(i int, e *Event) error {
		e.Ended(errs[i])
		return errs[i]
	})
}

// Settle implements store.Store.
func (r *recorder) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	return record(r, settlements, OfSettlement, func([]Event) error {
		return r.store.Settle(ctx, settlements, errs)
	}, func(i int, e *Event) error {
		r.leave(settlements[i].Token)
		e.Ended(errs[i])
		return errs[i]
	})
}

// record writes down a call of the store with these elements and what became of each, and
// returns what the call returned.
func record[E any](
	r *recorder, elements []E, of func(*E) Event, call func([]Event) error, answered func(int, *Event) error,
) error {
	events := make([]Event, len(elements))
	for i := range elements {
		events[i] = of(&elements[i])
	}
	if err := r.w.Call(events); err != nil {
		return err
	}
	err := call(events)
	for i := range events {
		if err != nil {
			events[i].Error, events[i].Text = Unknown, err.Error()
		} else if err := answered(i, &events[i]); err != nil {
			r.failed(err)
		}
	}
	if err != nil {
		r.failed(err)
	}
	return cmp.Or(err, r.w.Return(events))
}

// join remembers the tokens that may get a pushed grant.
func (r *recorder) join(claims []store.Claim, events []Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range claims {
		c := &claims[i]
		if _, ok := r.waiting[c.Token]; !ok && c.Mode == store.Queue {
			r.waiting[c.Token] = events[i]
		}
	}
}

// leave forgets a token that was settled.
func (r *recorder) leave(t store.Token) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.tokens, t.ID())
}

// granted remembers a token that was granted.
func (r *recorder) granted(t store.Token, a *store.Answer) {
	if a.State == store.Granted {
		r.mu.Lock()
		r.tokens[t.ID()] = hex.EncodeToString(t[:])
		r.mu.Unlock()
	}
}

// pushed writes down a pushed grant.
func (r *recorder) pushed(t store.Token, a *store.Answer) {
	r.mu.Lock()
	claim, ok := r.waiting[t]
	r.mu.Unlock()
	if !ok {
		return // the token has not claimed through this store
	}
	r.granted(t, a)
	_ = r.w.Happened(OfPushed(claim, a)) // an error means that the runner has ended
}

// notifier is a recorder of a store.Notifier.
type notifier struct {
	*recorder
	n store.Notifier
}

// Notify implements store.Notifier. It does not write a wake-up without a grant, because that
// says nothing.
func (n *notifier) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	return n.n.Notify(func(t store.Token, a store.Answer) {
		if a.State == store.Granted {
			n.pushed(t, &a)
		}
		wake(t, a)
	})
}

// RecordTransactor returns a store.Transactor that writes its commits to the history, as
// settlements with the name "transaction". A function that runs in one of its transactions finds
// the store's own transaction with Inside.
func RecordTransactor(t store.Transactor, w *Writer, failed func(error)) store.Transactor {
	if failed == nil {
		failed = func(error) {}
	}
	return &transactor{t, w, failed}
}

// Inside returns ctx with the store's own transaction in place of the recorded one.
func Inside(ctx context.Context) context.Context {
	if tx, ok := store.TransactionFrom(ctx).(*transaction); ok {
		return store.WithTransaction(ctx, tx.Transaction)
	}
	return ctx
}

type transactor struct {
	store.Transactor
	w      *Writer
	failed func(error)
}

// Begin implements store.Transactor.
func (t *transactor) Begin(ctx context.Context) (store.Transaction, error) {
	tx, err := t.Transactor.Begin(ctx)
	if err != nil {
		t.failed(err)
		return nil, err
	}
	return &transaction{tx, t}, nil
}

// transaction is a transaction whose commit is recorded.
type transaction struct {
	store.Transaction
	t *transactor
}

// Commit implements store.Transaction.
func (tx *transaction) Commit(ctx context.Context, s store.Settlement) error {
	events := []Event{OfSettlement(&s)}
	events[0].Name = "transaction"
	if err := tx.t.w.Call(events); err != nil {
		return errors.Join(store.ErrRolledBack, err)
	}
	err := tx.Transaction.Commit(ctx, s)
	events[0].Ended(err)
	if err != nil {
		tx.t.failed(err)
	}
	_ = tx.t.w.Return(events) // an error means that the runner has ended
	return err
}
