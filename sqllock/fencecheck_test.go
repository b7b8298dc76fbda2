package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

func newFenceCheck(t testing.TB, b bench, o *FenceCheckOptions) *FenceCheck {
	t.Helper()
	c, err := NewFenceCheck(b.d, o)
	testkit.Must(t, err)
	testkit.Must(t, c.Migrate(t.Context(), b.DB))
	return c
}

func TestFenceCheck(t *testing.T) {
	const now = 1_800_000_000_000_000 // a fence of the stores: µs
	onEach(t, func(t *testing.T, b bench) {
		c := newFenceCheck(t, b, &FenceCheckOptions{Table: "Fences"})
		admit := func(resource string, fence uint64) error {
			return Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
				return c.Admit(ctx, tx, resource, fence)
			})
		}
		for _, c := range []struct {
			resource       string
			fence, highest uint64 // 0: admitted
		}{
			{"a", now, 0}, {"a", now, 0}, {"a", now + 2, 0}, {"a", now + 1, now + 2}, {"a", now + 2, 0}, {"a", 1, now + 2},
			{"A", 1, 0}, {"a ", 1, 0}, {"a\x00", 1, 0}, {"\xff\xfe", 1, 0}, {"\xff\xfe", 1, 0}, {"\xff\xff", 1, 0},
			{"'; DROP TABLE Fences; --", 7, 0}, {"'; DROP TABLE Fences; --", 6, 7},
			{strings.Repeat("x", store.MaxKey), 7, 0}, {strings.Repeat("x", store.MaxKey-1), 6, 0},
			{"most", math.MaxInt64, 0}, {"most", math.MaxInt64 - 1, math.MaxInt64},
		} {
			err := admit(c.resource, c.fence)
			overtaken, ok := errors.AsType[*OvertakenError](err)
			switch {
			case c.highest == 0 && err != nil, c.highest != 0 && !ok:
				t.Errorf("fence %d of %q: %v", c.fence, c.resource, err)
			case ok && (*overtaken != OvertakenError{c.resource, c.fence, c.highest} ||
				!errors.Is(err, ErrOvertaken) || !errors.Is(err, dibs.ErrLost) || strings.Contains(err.Error(), "DROP")):
				t.Errorf("fence %d of %q: %+v %v", c.fence, c.resource, overtaken, err)
			}
		}
		for _, c := range []struct {
			resource string
			fence    uint64
			want     string
		}{
			{"", 1, "0 bytes"}, {strings.Repeat("x", store.MaxKey+1), 1, "513 bytes"},
			{"a", 0, "the fence is 0"}, {"a", math.MaxInt64 + 1, "the fence is 9223372036854775808"},
		} {
			if err := admit(c.resource, c.fence); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("fence %d of a resource of %d bytes: %v", c.fence, len(c.resource), err)
			}
		}
		if err := c.Admit(t.Context(), b.DB, "a", now+9); err == nil || !strings.Contains(err.Error(), "not a transaction") {
			t.Errorf("without a transaction: %v", err)
		}
	})
}

// An answer without LAST_INSERT_ID() is an error: it admits no holder, and no number
// is made up.
func TestNoLastInsertID(t *testing.T) {
	t.Parallel()
	server := &fakeServer{exec: func(string) error { return nil }}
	tx := beginTx(t, server.open(t))
	c, err := NewFenceCheck(MySQL, nil)
	testkit.Must(t, err)
	if err := c.Admit(t.Context(), tx, "a", 7); !errors.Is(err, errNoID) {
		t.Errorf("Admit: %v", err)
	}
	s, err := NewSequence(MariaDB, nil)
	testkit.Must(t, err)
	if n, err := s.NextN(t.Context(), tx, "a", 3); !errors.Is(err, errNoID) {
		t.Errorf("NextN: %d, %v", n, err)
	}
}

// The one that was overtaken waits for the one that overtakes it, and is refused when
// that commits, and not when that rolls back.
func TestFenceCheckWaits(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		c := newFenceCheck(t, b, nil)
		own := errors.New("rolled back")
		for _, end := range []error{own, nil} {
			admitted := make(chan struct{})
			late := make(chan error, 1)
			err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
				if err := c.Admit(ctx, tx, "a", 20); err != nil {
					return err
				}
				go func() {
					close(admitted)
					late <- Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
						return c.Admit(ctx, tx, "a", 10)
					})
				}()
				<-admitted
				if len(late) > 0 {
					t.Error("the late one was answered")
				}
				return end
			})
			if !errors.Is(err, end) {
				t.Error(err)
			}
			if err := <-late; (err == nil) != (end != nil) || err != nil && !errors.Is(err, ErrOvertaken) {
				t.Errorf("after %v the late one ends with %v", end, err)
			}
		}
	})
}

// However they come, no fence is written after a higher one.
func TestFenceCheckOrder(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		c := newFenceCheck(t, b, nil)
		s := newSequence(t, b, nil)
		b.must(t, "CREATE TABLE ledger (place BIGINT, fence BIGINT)")
		const holders, writes = 16, 8
		var wg sync.WaitGroup
		for h := range holders {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(h), 3))
				for range writes {
					fence := uint64(1 + r.IntN(1000))
					err := Transact(t.Context(), b.d, b.DB, &TransactOptions{MaxTries: 1000}, func(ctx context.Context, tx *sql.Tx) error {
						if err := c.Admit(ctx, tx, "ledger", fence); err != nil {
							return err
						}
						place, err := s.Next(ctx, tx, "ledger")
						if err != nil {
							return err
						}
						_, err = tx.ExecContext(ctx, b.sql("INSERT INTO ledger (place, fence) VALUES ($1, $2)"), place, int64(fence))
						return err
					})
					if err != nil && !errors.Is(err, ErrOvertaken) {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if n := b.number(t, "SELECT COUNT(*) FROM ledger"); n < 1 || n == holders*writes {
			t.Errorf("%d of %d were admitted", n, holders*writes)
		}
		if n := b.number(t, "SELECT COUNT(*) FROM ledger a JOIN ledger b ON a.place < b.place AND a.fence > b.fence"); n != 0 {
			t.Errorf("%d writes came after one with a higher fence", n)
		}
	})
}

func TestFenceCheckPgx(t *testing.T) {
	t.Parallel()
	b := bench{database: databases["postgres"], DB: postgresDB(t)}
	c := newFenceCheck(t, b, nil)
	tx := pgxTx(t, b)
	testkit.Check(t, c.Admit(t.Context(), tx, "a", 7))
	if err := c.Admit(t.Context(), tx, "a", 6); !errors.Is(err, ErrOvertaken) {
		t.Error(err)
	}
	other, err := NewFenceCheck(SQLite, nil)
	testkit.Must(t, err)
	if err := other.Admit(t.Context(), tx, "a", 7); err == nil || !strings.Contains(err.Error(), "SQLite") {
		t.Error(err)
	}
}
