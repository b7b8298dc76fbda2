package idempotency

import (
	"context"
	"fmt"

	"github.com/dibs-go/dibs"
)

// errStoreTimeout ends calls of the store after Options.StoreTimeout.
var errStoreTimeout = fmt.Errorf("idempotency: %w in time: %w", dibs.ErrStore, context.DeadlineExceeded)

// withStoreTimeout returns a context for a call of the store, with the values of ctx. It ends after
// Options.StoreTimeout, and not with ctx.
func (m *Middleware) withStoreTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), m.options.StoreTimeout, errStoreTimeout)
}
