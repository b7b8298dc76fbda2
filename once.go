package dibs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/oncerecord"
	"github.com/dibs-go/dibs/store"
)

// defaultRetention is the default of OnceOptions.Retention.
const defaultRetention = 24 * time.Hour

// OnceOptions say how Once runs and what it remembers. The zero value and nil mean: wait
// while another caller runs, remember results for 24 hours, and no errors.
type OnceOptions struct {
	// Retention is how long the result is remembered. Default: 24 hours.
	Retention time.Duration
	// MaxAge is the age up to which a remembered result is returned. Default: any age.
	MaxAge time.Duration

	// Fingerprint of what is asked under the key: a caller with another one gets
	// ErrMismatch. Default: none.
	Fingerprint Fingerprint

	// Remember reports whether an error is remembered like a result: all later callers get
	// it as a *RememberedError, and fn does not run again. Default: no error is
	// remembered, and the next caller runs.
	Remember func(error) bool

	// AtMostOnce refuses to run again after a crash; see AcquireOptions.
	AtMostOnce bool

	// Rerun lets the next caller run fn again if the result of a run could not be stored.
	// Default: fn does not run again, because it had its effect; see KeepError.
	Rerun bool

	// TTL, Wait and Label are those of AcquireOptions.
	TTL   time.Duration
	Wait  time.Duration
	Label string
}

// RememberedError is an error that an earlier caller's fn returned and that was remembered
// as the result.
type RememberedError struct {
	Text string
}

func (e *RememberedError) Error() string { return e.Text }

// UnrecordedError says that an earlier caller's fn ran, and that its result could not be stored. fn
// does not run again until the retention is over. An operator finds out what fn did, and gives
// the result (dibs resolve) or lets the next caller run (dibs forget).
type UnrecordedError struct {
	Key Key
	// Why is why the result could not be stored.
	Why string
}

func (e *UnrecordedError) Error() string {
	return "dibs: an earlier run under the key " + e.Key.Digest() + " was done, but its result could not be stored (" + e.Why +
		"); an operator gives the result with dibs resolve, or lets it run again with dibs forget"
}

// Once runs fn under the key unless that was done before. All callers get its result: those
// that call while it runs wait for it, and those that call later get it until the retention
// is over, in any process. The result is kept as JSON.
//
// The context that fn gets is the lease's (see FromContext): Step inside fn skips the steps
// that a crashed run had done. It carries no transaction (see Transactor), because the
// remembered result would stay if the transaction was rolled back. OnceIn makes a
// transaction.
//
// Once returns what fn returned, in this call or an earlier one. If fn did not run and
// there is no result, Once returns an error of Acquire. If the lease was lost while fn ran,
// ErrLost is joined to fn's error and the result is not remembered.
//
// If fn ran and its result could not be stored, Once returns the result with a *KeepError, and
// later callers get a *UnrecordedError (but see OnceOptions.Rerun). That a result is not JSON, such
// as a NaN, or larger than the store accepts, does not undo what fn did.
//
// A result that was stored as another type is an error. The type may have got fields since then, or
// may have lost some, but not both: an object fits a struct if the struct has all stored fields,
// or if all fields of the struct are stored, and they have at least one in common. A null fits
// what can be nil, and an array fits one of its length. The same counts inside.
func Once[T any](ctx context.Context, c *Client, key string, o *OnceOptions, fn func(context.Context) (T, error)) (result T, err error) {
	return once(ctx, key, o, c.Acquire, fn)
}

// TryOnce is Once without waiting: it returns ErrHeld at once while another caller runs. Of
// the options, Wait must be 0.
func TryOnce[T any](ctx context.Context, c *Client, key string, o *OnceOptions, fn func(context.Context) (T, error)) (result T, err error) {
	if o != nil && o.Wait != 0 {
		return result, errors.New("dibs: OnceOptions.Wait is not for TryOnce, which does not wait")
	}
	return once(ctx, key, o, c.TryAcquire, fn)
}

// acquirer is Client.Acquire or Client.TryAcquire.
type acquirer func(ctx context.Context, key string, o *AcquireOptions) (*Lease, error)

func once[T any](ctx context.Context, key string, o *OnceOptions, acquire acquirer, fn func(context.Context) (T, error)) (result T, err error) {
	if o == nil {
		o = &OnceOptions{}
	}
	if fn == nil {
		return result, noFunction("Once")
	}
	lease, err := o.acquire(ctx, acquire, key)
	if done, ok := errors.AsType[*DoneError](err); ok {
		return recall[T](done)
	}
	if err != nil {
		return result, err
	}
	defer func() {
		// Even after a panic and Goexit. After Complete it does nothing. If Complete was not
		// answered, the lease may have ended without having been lost.
		if lost := lease.Release(); errors.Is(lost, ErrLost) && !errors.Is(err, ErrLost) && !lease.unsure() {
			err = errors.Join(err, lost)
		}
	}()
	run := lease.Context()
	if store.TransactionFrom(run) != nil {
		run = store.WithTransaction(run, nil)
	}
	result, err = fn(run)
	if err != nil && (o.Remember == nil || !o.Remember(err)) {
		return result, err
	}
	return result, lease.keepResult(result, err, o)
}

// acquire takes the key for a run.
func (o *OnceOptions) acquire(ctx context.Context, acquire acquirer, key string) (*Lease, error) {
	if o.Retention < 0 || o.MaxAge < 0 {
		return nil, fmt.Errorf("dibs: OnceOptions.Retention is %v and MaxAge is %v; they must not be negative", o.Retention, o.MaxAge)
	}
	if o.Retention != 0 && o.Retention < store.MinDuration { // before fn runs
		return nil, fmt.Errorf("dibs: OnceOptions.Retention is %v; it must be at least %v", o.Retention, store.MinDuration)
	}
	return acquire(ctx, key, &AcquireOptions{
		TTL: o.TTL, Wait: o.Wait, Label: o.Label,
		Fingerprint: o.Fingerprint, AtMostOnce: o.AtMostOnce, MaxAge: cmp.Or(o.MaxAge, AnyAge),
	})
}

// KeepError says that fn ran in this call, but that its result was not stored.
type KeepError struct {
	// Err says why. If it is an ErrStore, the result may be stored all the same.
	Err error
	// Rerun says that the next caller runs fn again: OnceOptions.Rerun says so, or the store
	// did not answer or is full. Otherwise later callers get a *UnrecordedError, or with AtMostOnce
	// an *UnknownError if the store did not answer.
	Rerun bool
}

func (e *KeepError) Error() string {
	then := "later callers get an error that says so"
	if e.Rerun {
		then = "the next caller runs again"
	}
	return "dibs: the result could not be stored, and " + then + ": " + strings.TrimPrefix(e.Err.Error(), "dibs: ")
}

// Unwrap returns why.
func (e *KeepError) Unwrap() error { return e.Err }

// keepResult keeps what fn returned and returns the caller's error.
func (l *Lease) keepResult(result any, failed error, o *OnceOptions) error {
	retention := cmp.Or(o.Retention, defaultRetention)
	data, err := encode(result, failed)
	if err == nil {
		err = l.remember(data, retention)
	}
	switch {
	case err == nil:
		return failed
	case errors.Is(err, ErrLost):
		return errors.Join(failed, err)
	case o.Rerun:
		return errors.Join(failed, &KeepError{Err: err, Rerun: true})
	}
	keep := &KeepError{Err: err, Rerun: !o.AtMostOnce}
	if !errors.Is(err, ErrStore) && !errors.Is(err, ErrBusy) {
		err = l.remember(oncerecord.NotKept(err), retention)
	}
	switch {
	case err == nil:
		keep.Rerun = false
	case o.AtMostOnce && !errors.Is(err, ErrLost):
		err = l.endAs(store.Abandon) // so that the outcome is unknown
	}
	if errors.Is(err, ErrLost) && !l.unsure() {
		return errors.Join(failed, keep, ErrLost)
	}
	return errors.Join(failed, keep)
}

// encode returns the record of what fn returned.
func encode(result any, failed error) ([]byte, error) {
	var r oncerecord.Record
	if failed != nil {
		text := failed.Error()
		r.Error = &text
	} else {
		value, err := marshal(result)
		if err != nil {
			return nil, err
		}
		r.Value = value
	}
	return json.Marshal(r)
}

// remember completes the lease with a record.
func (l *Lease) remember(data []byte, retention time.Duration) error {
	// Not under the caller's context, because fn has run and its result must not be lost
	// when the caller stops waiting.
	ctx, cancel := context.WithTimeout(context.Background(), keepPatience)
	defer cancel()
	for again := retry(ctx, l.keeper.done, time.Now()); ; {
		err := l.Complete(ctx, data, retention)
		if !errors.Is(err, ErrStore) && !errors.Is(err, ErrBusy) || !again(keepPatience) {
			return err
		}
	}
}

// recall reads what keepResult wrote.
func recall[T any](done *DoneError) (result T, err error) {
	r, err := oncerecord.Read(done.Record.Data)
	switch {
	case err != nil:
		return result, fmt.Errorf("dibs: the record of key %s is not one of Once: %w", done.Key.Digest(), err)
	case r.NotKept != nil:
		return result, &UnrecordedError{Key: done.Key, Why: *r.NotKept}
	case r.Error != nil:
		return result, &RememberedError{Text: *r.Error}
	}
	if result, err = unmarshal[T](r.Value); err != nil {
		return result, fmt.Errorf("dibs: the result kept under key %s does not fit a %T: %w", done.Key.Digest(), result, err)
	}
	return result, nil
}
