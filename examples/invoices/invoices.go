// Package invoices is code that uses dibs, and its tests are what docs/guides/testing-your-code.md
// shows: no server, and no waiting.
package invoices

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs"
)

// ErrBusy is the answer while another caller sends the invoice.
var ErrBusy = errors.New("the invoice is being sent")

// A Sender sends invoices.
type Sender struct {
	Keys *dibs.Client
	Mail func(ctx context.Context, invoice string) error
}

// Send sends an invoice, unless another caller is sending it.
func (s *Sender) Send(ctx context.Context, invoice string) error {
	err := s.Keys.TryDo(ctx, "invoice "+invoice, func(ctx context.Context) error {
		return s.Mail(ctx, invoice)
	})
	if errors.Is(err, dibs.ErrHeld) {
		return ErrBusy
	}
	return err
}

// Remind sends a reminder, at most one a day, and says when.
func (s *Sender) Remind(ctx context.Context, invoice string) (time.Time, error) {
	return dibs.Once(ctx, s.Keys, "reminder "+invoice, &dibs.OnceOptions{Retention: 24 * time.Hour}, func(ctx context.Context) (time.Time, error) {
		return time.Now(), s.Mail(ctx, invoice)
	})
}
