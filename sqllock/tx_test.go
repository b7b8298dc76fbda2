package sqllock

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// packagePool is a pool as other packages wrap them: its transactions have a type of their
// own.
type packagePool struct{ *sql.DB }

func (p packagePool) BeginTx(ctx context.Context, o *sql.TxOptions) (packageTx, error) {
	tx, err := p.DB.BeginTx(ctx, o)
	return packageTx{tx}, err
}

type packageTx struct{ *sql.Tx }

// BeginTx stands for the savepoints of other packages.
func (t packageTx) BeginTx(context.Context, *sql.TxOptions) (packageTx, error) { return t, nil }

// A pool of another package is refused, because each statement would be committed alone. A
// transaction of another package is taken.
func TestTxOfAnotherPackage(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		s, pool := newSequence(t, b, nil), packagePool{b.DB}
		if _, err := s.Next(t.Context(), pool, "a"); err == nil || !strings.Contains(err.Error(), "is not a transaction") {
			t.Errorf("with a pool: %v", err)
		}
		tx, err := pool.BeginTx(t.Context(), nil)
		testkit.Must(t, err)
		defer tx.Rollback()
		if n, err := s.Next(t.Context(), tx, "a"); n != 1 || err != nil {
			t.Errorf("with a transaction: %d, %v", n, err)
		}
	})
}
