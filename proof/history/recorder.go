package history

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// Record returns a store that does what the given one does and writes down what it is
// asked and what it says. It can wake waiters if the store can, in the same way, and
// wants to be called as the store does. What serves operators (dibs.Inspector and so
// on) is no part of a history; Unwrap finds it. failed, when not nil, is told each error
// of a call or an element as it comes, from the goroutine of the call, ErrLost among them.
func Record(s dibs.Store, w *Writer, failed func(error)) dibs.Store {
	if failed == nil {
		failed = func(error) {}
	}
	r := &recorder{store: s, w: w, failed: failed, waiting: map[dibs.Token]waiter{}, tokens: map[string]string{}}
	switch n := s.(type) {
	case dibs.GrantNotifier:
		return &grantNotifier{notifier{r, n}, n}
	case dibs.Notifier:
		return &notifier{r, n}
	}
	return r
}

// Unwrap returns the store under one that Record returned, and any other as it is.
func Unwrap(s dibs.Store) dibs.Store {
	if r := recorderOf(s); r != nil {
		return r.store
	}
	return s
}

// Token returns the token of the attempt that a lease's ID names, as events have it, if
// it was granted by a store that Record returned and not settled yet; "" for any other.
func Token(s dibs.Store, id string) string {
	r := recorderOf(s)
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tokens[id]
}

// recorderOf returns what Record returned; nil for any other store.
func recorderOf(s dibs.Store) *recorder {
	switch r := s.(type) {
	case *recorder:
		return r
	case *notifier:
		return r.recorder
	case *grantNotifier:
		return r.recorder
	}
	return nil
}

// recorder is a store that is watched.
type recorder struct {
	store  dibs.Store
	w      *Writer
	failed func(error)

	mu sync.Mutex
	// waiting are the tokens that may be told a grant. A grant may be told late, after its
	// token was settled, so they stay.
	waiting map[dibs.Token]waiter
	// tokens are those that were granted, by their public names.
	tokens map[string]string
}

// waiter is when a token was claimed first, and for what.
type waiter struct {
	key    string
	call   time.Duration
	maxAge time.Duration // of a record that answers it
}

var (
	_ dibs.Store         = (*recorder)(nil)
	_ dibs.Batcher       = (*recorder)(nil)
	_ dibs.Notifier      = (*notifier)(nil)
	_ dibs.GrantNotifier = (*grantNotifier)(nil)
)

// Batching implements dibs.Batcher: a store that says nothing wants the default, which is
// the zero Batching.
func (r *recorder) Batching() dibs.Batching {
	if b, ok := r.store.(dibs.Batcher); ok {
		return b.Batching()
	}
	return dibs.Batching{}
}

// Claim implements dibs.Store.
func (r *recorder) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	events := make([]Event, len(claims))
	for i := range claims {
		events[i] = asked(&claims[i])
	}
	if err := r.w.Call(events); err != nil {
		return err
	}
	r.join(claims, events)
	err := r.store.Claim(ctx, claims, answers)
	for i := range events {
		if err != nil {
			events[i].Error = Unknown
			events[i].Text = err.Error()
			continue
		}
		answered(&events[i], &answers[i])
		r.granted(claims[i].Token, &answers[i])
		if answers[i].Err != nil {
			r.failed(answers[i].Err)
		}
	}
	if err != nil {
		r.failed(err)
	}
	return cmp.Or(err, r.w.Return(events))
}

// Renew implements dibs.Store.
func (r *recorder) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	events := make([]Event, len(renewals))
	for i, n := range renewals {
		events[i] = Event{Kind: Renew, Key: n.Key.Name, Token: hex.EncodeToString(n.Token[:]), TTL: n.TTL}
		if n.Progress != nil {
			events[i].Data = Data(n.Progress)
		}
	}
	if err := r.w.Call(events); err != nil {
		return err
	}
	err := r.store.Renew(ctx, renewals, errs)
	return r.tell(events, errs, err)
}

// Settle implements dibs.Store.
func (r *recorder) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	events := make([]Event, len(settlements))
	for i := range settlements {
		events[i] = settling(&settlements[i])
	}
	if err := r.w.Call(events); err != nil {
		return err
	}
	err := r.store.Settle(ctx, settlements, errs)
	if err == nil {
		r.leave(settlements)
	}
	return r.tell(events, errs, err)
}

// tell writes down what became of renewals or settlements, and returns what the call
// returned.
func (r *recorder) tell(events []Event, errs []error, err error) error {
	for i := range events {
		switch {
		case err != nil:
			events[i].Error, events[i].Text = Unknown, err.Error()
		case errors.Is(errs[i], dibs.ErrLost):
			events[i].Error = Lost
		case errors.Is(errs[i], dibs.ErrFull), errors.Is(errs[i], dibs.ErrBusy):
			events[i].Error = errs[i].Error()
		case errs[i] != nil:
			// Nothing was done for it, or something that does no harm: a part of a Redis
			// Cluster that did not answer may have renewed.
			events[i].Error, events[i].Text = Unknown, errs[i].Error()
		}
	}
	if err != nil {
		r.failed(err)
	} else {
		for _, err := range errs {
			if err != nil {
				r.failed(err)
			}
		}
	}
	return cmp.Or(err, r.w.Return(events))
}

// join remembers who may be told a grant.
func (r *recorder) join(claims []dibs.Claim, events []Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range claims {
		c := &claims[i]
		if _, ok := r.waiting[c.Token]; !ok && c.Mode == dibs.Queue {
			r.waiting[c.Token] = waiter{c.Key.Name, events[i].Call, c.MaxAge}
		}
	}
}

// leave forgets who held.
func (r *recorder) leave(settlements []dibs.Settlement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range settlements {
		delete(r.tokens, settlements[i].Token.ID())
	}
}

// granted remembers who holds.
func (r *recorder) granted(t dibs.Token, a *dibs.Answer) {
	if a.State == dibs.Granted {
		r.mu.Lock()
		r.tokens[t.ID()] = hex.EncodeToString(t[:])
		r.mu.Unlock()
	}
}

// told writes down a grant that came by itself.
func (r *recorder) told(t dibs.Token, a *dibs.Answer) {
	r.mu.Lock()
	w, ok := r.waiting[t]
	r.mu.Unlock()
	if !ok {
		return // nobody has claimed by this store
	}
	e := Event{Kind: Told, Key: w.key, Token: hex.EncodeToString(t[:]), Call: w.call, MaxAge: w.maxAge}
	answered(&e, a)
	r.granted(t, a)
	_ = r.w.Happened(e) // whoever reads it is gone, and so are we soon
}

// notifier is a recorder of a dibs.Notifier.
type notifier struct {
	*recorder
	n dibs.Notifier
}

// Notify implements dibs.Notifier. A wake-up says nothing, and is not written down.
func (n *notifier) Notify(wake func(dibs.Token)) (stop func()) { return n.n.Notify(wake) }

// grantNotifier is a recorder of a dibs.GrantNotifier.
type grantNotifier struct {
	notifier
	g dibs.GrantNotifier
}

// NotifyGrants implements dibs.GrantNotifier.
func (n *grantNotifier) NotifyGrants(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	return n.g.NotifyGrants(func(t dibs.Token, a dibs.Answer) {
		if a.State == dibs.Granted {
			n.told(t, &a)
		}
		wake(t, a)
	})
}

// modes and outcomes are how those of a store are written down.
var (
	modes    = [...]string{dibs.Try: "try", dibs.Queue: "queue", dibs.Reserve: "reserve", dibs.Look: "look"}
	outcomes = [...]string{dibs.Release: "release", dibs.Keep: "keep", dibs.Abandon: "abandon", dibs.Undo: "undo"}
	states   = [...]string{
		dibs.Granted: "granted", dibs.Held: "held", dibs.Free: "free", dibs.Done: "done", dibs.Mismatch: "mismatch",
		dibs.PermitsDiffer: "permits differ", dibs.Unknown: "unknown",
	}
)

// asked is the event of a claim.
func asked(c *dibs.Claim) Event {
	e := Event{
		Kind: Claim, Key: c.Key.Name, Token: hex.EncodeToString(c.Token[:]), Mode: modes[c.Mode],
		TTL: c.TTL, Place: c.Place, Hold: c.Hold, Permits: c.Permits, MaxAge: c.MaxAge, AtMostOnce: c.AtMostOnce,
	}
	if !c.Redeems.IsZero() {
		e.Redeems = hex.EncodeToString(c.Redeems[:])
	}
	if !c.Fingerprint.IsZero() {
		e.Fingerprint = hex.EncodeToString(c.Fingerprint[:8])
	}
	return e
}

// answered adds what a claim was answered.
func answered(e *Event, a *dibs.Answer) {
	if a.Err != nil {
		e.Error = a.Err.Error()
		return
	}
	e.State = states[a.State]
	switch a.State {
	case dibs.Granted:
		e.Fence, e.Attempt = a.Fence, a.Attempt
	case dibs.Held:
		e.Fence, e.Ahead, e.Queued, e.Left = a.Fence, a.Ahead, a.Queued, a.Left
	case dibs.Done:
		e.Data = Data(a.Record.Data)
	}
}

// settling is the event of a settlement.
func settling(s *dibs.Settlement) Event {
	e := Event{Kind: Settle, Key: s.Key.Name, Token: hex.EncodeToString(s.Token[:]), Outcome: outcomes[s.Outcome]}
	if s.Outcome == dibs.Keep {
		e.Data, e.Retention = Data(s.Data), s.Retention
	}
	return e
}
