//go:build nightly

package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// The lease cannot be renewed while the file is locked, and so bounds the transaction.
// (It is by the host's clock that a client knows that its lease is over, and a claim
// that takes longer than its lease is none. TestLeaseIsNotRenewedMeanwhile needs no time.)
func TestLeaseBoundsTheTransaction(t *testing.T) {
	l := newLedger(t, testFile(t), &Options{LockWait: time.Minute})
	_, err := OnceTx(t.Context(), l.c, l.tr, "k", &dibs.OnceOptions{TTL: 2 * time.Second}, func(ctx context.Context, tx *sql.Tx) (string, error) {
		answer, err := book(ctx, tx, "k")
		<-ctx.Done() // it takes its time, and notices late
		return answer, err
	})
	if !errors.Is(err, store.ErrLost) {
		t.Error(err)
	}
	l.want("k", 0)
	if _, err := l.once("k"); err != nil {
		t.Error(err)
	}
	l.want("k", 1)
}
