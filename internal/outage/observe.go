package outage

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Call is a call of a store, as dibs.StoreCall has it.
type Call struct {
	Verb   string
	Size   int
	Undone int
	Took   time.Duration
	Err    error
}

// observed is a store whose calls are observed.
type observed struct {
	store.Store
	to  func(Call)
	log *Log
}

// Observe returns the store. Each call of it is logged, and told to the function if that is not nil.
func Observe(under store.Store, log *Log, to func(Call)) store.Store {
	if to == nil {
		to = func(Call) {}
	}
	return observed{under, to, log}
}

func (o observed) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	began := time.Now()
	err := o.Store.Claim(ctx, claims, answers)
	o.called(ctx, began, Call{Verb: "claim", Size: len(claims)}, err, func(i int) error { return answers[i].Err })
	return err
}

func (o observed) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	began := time.Now()
	err := o.Store.Renew(ctx, renewals, errs)
	o.called(ctx, began, Call{Verb: "renew", Size: len(renewals)}, err, func(i int) error { return errs[i] })
	return err
}

func (o observed) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	began := time.Now()
	err := o.Store.Settle(ctx, settlements, errs)
	undone := 0
	for i, s := range settlements {
		if s.Outcome == store.Undo && err == nil && errs[i] == nil {
			undone++
		}
	}
	o.called(ctx, began, Call{Verb: "settle", Size: len(settlements), Undone: undone}, err, func(i int) error { return errs[i] })
	return err
}

// called reports a call that returned err. alone returns why an element failed alone.
func (o observed) called(ctx context.Context, began time.Time, c Call, err error, alone func(i int) error) {
	c.Took, c.Err = time.Since(began), failure(ctx, StoreFault(err, c.Size, alone))
	o.to(c)
	if err != nil {
		// The call may have ended because its caller does not wait any more.
		if ctx.Err() == nil || c.Took >= slowCall && !errors.Is(c.Err, context.Canceled) {
			o.log.Failed(c.Err)
		}
		return
	}
	if c.Err != nil {
		o.log.Failed(c.Err)
		return
	}
	o.log.AnsweredSince(began)
}

// slowCall is how long a call has to last until the end of its time says something about the
// store.
const slowCall = time.Second

// failure returns why a call failed, with the end of its context and the cause, because a
// store's own error need not contain them.
func failure(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return errors.Join(err, ctx.Err(), context.Cause(ctx))
}
