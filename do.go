package dibs

import (
	"context"
	"errors"
	"fmt"
)

// Do waits for its turn on the key and runs fn while it holds the key. The context that fn
// gets ends with cause ErrLost when the lease is lost, and carries the lease (see
// FromContext). The key is released when fn returns, panics or calls runtime.Goexit.
//
// Do returns what fn returned. If the lease was lost while fn ran, ErrLost is joined to
// that, because another holder may have run at the same time. If fn did not run, Do
// returns ErrHeld when Options.Wait was over, the context's cause when it ended, ErrStore
// when the store did not answer, or another error of Acquire.
func (c *Client) Do(ctx context.Context, key string, fn func(context.Context) error) error {
	if fn == nil {
		return noFunction("Do")
	}
	lease, err := c.Acquire(ctx, key, nil)
	if err != nil {
		return err
	}
	return lease.run(fn)
}

// TryDo is Do without waiting: it returns ErrHeld at once if the key is held or others
// wait for it.
func (c *Client) TryDo(ctx context.Context, key string, fn func(context.Context) error) error {
	if fn == nil {
		return noFunction("TryDo")
	}
	lease, err := c.TryAcquire(ctx, key, nil)
	if err != nil {
		return err
	}
	return lease.run(fn)
}

// noFunction returns the error of a call without a function to run. It is found before a key is taken.
func noFunction(call string) error {
	return fmt.Errorf("dibs: %s was given no function; pass the function that runs under the key", call)
}

// run runs fn under the lease and releases it on every way out.
func (l *Lease) run(fn func(context.Context) error) (err error) {
	defer func() {
		// Only a loss is reported. If the release failed for another reason, the undoer
		// makes up for it, and the caller must not run fn again.
		if lost := l.Release(); errors.Is(lost, ErrLost) {
			err = errors.Join(err, lost)
		}
	}()
	return fn(l.Context())
}
