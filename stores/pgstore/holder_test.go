package pgstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// holding is a transaction of the application that holds leases.
type holding struct {
	store.Holder
	exec             func(sql string) error
	commit, rollback func() error
}

func (b *bank) beginHolding(t *testing.T, way string) *holding {
	t.Helper()
	if way == "sql" {
		tx, err := b.db.BeginTx(t.Context(), nil)
		testkit.Must(t, err)
		exec := func(text string) error { _, err := tx.ExecContext(t.Context(), text); return err }
		return &holding{b.s.SQLHolder(tx), exec, tx.Commit, tx.Rollback}
	}
	tx, err := b.pool.Begin(t.Context())
	testkit.Must(t, err)
	exec := func(text string) error { _, err := tx.Exec(t.Context(), text); return err }
	return &holding{b.s.Holder(tx), exec, func() error { return tx.Commit(t.Context()) }, func() error { return tx.Rollback(context.Background()) }}
}

// TestLeaseHoldIn: a lease that a transaction holds is renewed, and nobody is granted its key when
// it ends all the same. A transaction of a lease that is lost fails, and the lease's context ends.
func TestLeaseHoldIn(t *testing.T) {
	t.Parallel()
	for way := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, ways[way](), nil)
			way, _, _ := strings.Cut(way, ",")
			lease, err := b.client.TryAcquire(t.Context(), "k", nil)
			testkit.Must(t, err)
			k := b.client.Key("k")
			tx := b.beginHolding(t, way)
			defer tx.rollback()
			testkit.Must(t, lease.HoldIn(t.Context(), tx))
			testkit.Must(t, tx.exec(b.entry("held")))
			testkit.Check(t, lease.Save(t.Context(), []byte("half"))) // a renewal
			if n, err := b.s.ForceRelease(t.Context(), k, ""); !errors.Is(err, ErrLocked) {
				t.Errorf("an operator ended %d leases meanwhile, %v; want ErrLocked", n, err)
			}
			testkit.Must(t, tx.commit())
			_, err = b.s.ForceRelease(t.Context(), k, "")
			testkit.Must(t, err)
			if got := sqltest.Ask(t, b.s, store.Claim{Key: k, Token: store.NewToken()}); got.State != store.Granted || b.entries(t, "held") != 1 {
				t.Errorf("after COMMIT: %+v, %d entries", got, b.entries(t, "held"))
			}
			late := b.beginHolding(t, way)
			defer late.rollback()
			testkit.Must(t, late.exec(b.entry("late")))
			if err := lease.HoldIn(t.Context(), late); !errors.Is(err, dibs.ErrLost) || !errors.Is(lease.Err(), dibs.ErrLost) {
				t.Errorf("a lease that was taken away: %v, then %v", err, lease.Err())
			}
			if err := late.exec(b.entry("late")); err == nil {
				t.Error("the transaction continues")
			}
			if err := lease.HoldIn(t.Context(), late); !errors.Is(err, dibs.ErrLost) {
				t.Errorf("once more: %v", err)
			}
			testkit.Check(t, late.rollback())
			if n := b.entries(t, "late"); n != 0 {
				t.Errorf("%d late writes", n)
			}
		})
	}
}

// TestHoldInARun: a lease is held in the transaction of a run under another key.
func TestHoldInARun(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	lease, err := b.client.TryAcquire(t.Context(), "leader", nil)
	testkit.Must(t, err)
	got, err := OnceTx(t.Context(), b.client, b.s.Transactions(b.pool, nil), "k", nil, func(ctx context.Context, tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, b.entry("k"))
		return "done", errors.Join(lease.HoldIn(ctx, b.s.Holder(tx)), err)
	})
	if err != nil || got != "done" || b.entries(t, "k") != 1 {
		t.Errorf("%q, %v, %d entries", got, err, b.entries(t, "k"))
	}
	testkit.Check(t, lease.Release())
}

// TestHolderRefused: what cannot work is said at once.
func TestHolderRefused(t *testing.T) {
	t.Parallel()
	b := newBank(t, shared().URL(), nil)
	shared().Query("CREATE DATABASE " + b.s.names.schema)
	elsewhere := strings.Replace(shared().URL(), "/postgres?", "/"+b.s.names.schema+"?", 1)
	open(t, elsewhere, namesOf(b.s)) // which has the same tables
	pool, err := pgxpool.New(t.Context(), elsewhere)
	testkit.Must(t, err)
	defer pool.Close()
	lease, err := b.client.TryAcquire(t.Context(), "k", &dibs.AcquireOptions{TTL: time.Minute})
	testkit.Must(t, err)
	other, err := pool.Begin(t.Context())
	testkit.Must(t, err)
	defer other.Rollback(context.Background())
	readOnly, err := b.pool.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly})
	testkit.Must(t, err)
	over, err := b.pool.Begin(t.Context())
	testkit.Must(t, err)
	testkit.Must(t, over.Rollback(t.Context()))
	defer readOnly.Rollback(context.Background())
	for _, test := range []struct {
		h    store.Holder
		is   error
		says string
	}{
		{b.s.Holder(other), ErrOtherDatabase, "pool"},
		{b.s.Holder(readOnly), ErrReadOnly, "a lease is locked"},
		{b.s.Holder(readOnly), ErrAborted, "savepoint"}, // by that
		{b.s.Holder(over), pgx.ErrTxClosed, "over"},
		{b.s.Holder(nil), nil, "no transaction"},
		{b.s.SQLHolder(nil), nil, "no transaction"},
	} {
		err := lease.HoldIn(t.Context(), test.h)
		if err == nil || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v; want %v, and %q", err, test.is, test.says)
		}
	}
	if err := lease.Err(); err != nil {
		t.Errorf("the lease: %v", err)
	}
	_, err = other.Exec(t.Context(), "SELECT 1")
	testkit.Check(t, err)
	testkit.Check(t, lease.Release())
}
