package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// increments is how many callers add one to the same row at once.
const increments = 16

// increments increments the balance by all callers at once, and checks that each increment counts.
func (b bench) increments(t *testing.T, increment func() error) {
	t.Helper()
	var wg sync.WaitGroup
	for range increments {
		wg.Go(func() {
			testkit.Check(t, increment())
		})
	}
	wg.Wait()
	if got := b.number(t, "SELECT balance FROM account WHERE id = 1"); got != 100+increments {
		t.Errorf("the balance is %d after %d increments from 100", got, increments)
	}
}

func TestUpdate(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 1)
		row := newRow(t, b.d, b.accountOptions())
		b.increments(t, func() error {
			_, err := row.Update(t.Context(), b.DB, func(_ context.Context, _ *sql.Tx, a *account) error {
				a.Balance++
				return nil
			}, 1)
			return err
		})
	})
}

func TestUpdateOptimistic(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 1)
		o := b.accountOptions()
		o.MaxTries = 1000
		row := newRow(t, b.d, o)
		all := newBarrier(increments)
		b.increments(t, func() error {
			first := true
			_, err := row.UpdateOptimistic(t.Context(), b.DB, func(_ context.Context, a *account) error {
				if first { // all read the same
					first = false
					all.wait(t)
				}
				a.Balance++
				return nil
			}, 1)
			return err
		})
	})
}

func TestUpdateOptimisticGivesUp(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 1)
		o := b.accountOptions()
		o.MaxTries = 3
		row := newRow(t, b.d, o)
		runs := 0
		_, err := row.UpdateOptimistic(t.Context(), b.DB, func(_ context.Context, a *account) error {
			runs++
			b.must(t, "UPDATE account SET version = version + 1") // another writer
			a.Balance = 0
			return nil
		}, 1)
		if !errors.Is(err, ErrConflict) || runs != 3 {
			t.Errorf("after %d runs: %v", runs, err)
		}
		if got := b.number(t, "SELECT balance FROM account"); got != 100 {
			t.Errorf("the balance is %d", got)
		}
	})
}

// Two people fill in a form that was made from the same row.
func TestSave(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 1)
		row := newRow(t, b.d, b.accountOptions())
		first, second := account{1, 150, 1}, account{1, 50, 1}
		testkit.Check(t, row.Save(t.Context(), b.DB, &first))
		if err := row.Save(t.Context(), b.DB, &second); !errors.Is(err, ErrConflict) {
			t.Errorf("the second one: %v", err)
		}
		second.Version++
		err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
			return row.Save(ctx, tx, &second)
		})
		if got := b.number(t, "SELECT balance FROM account"); err != nil || got != 50 {
			t.Errorf("the balance is %d, %v", got, err)
		}
	})
}

// What others have locked is not waited for, or only so long. That it is no longer is in
// wait_test.go, where time is exact.
func TestUpdateWait(t *testing.T) {
	for name, lock := range map[string]RowLock{
		"at once":        {Wait: NoWait},
		"0.25 s":         {Wait: 250 * time.Millisecond},
		"1.2 s":          {Wait: 1200 * time.Millisecond},
		"0.25 s, no key": {Wait: 250 * time.Millisecond, NoKey: true},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, b bench) {
				b.accounts(t, 1)
				release := b.holdRow(t, 1)
				o := b.accountOptions()
				o.Lock = lock
				if b.d == MySQL && lock.Wait > 0 {
					if _, err := NewRow(b.d, o); err == nil || !strings.Contains(err.Error(), "innodb_lock_wait_timeout") {
						t.Errorf("MySQL limits the wait: %v", err)
					}
					return
				}
				row := newRow(t, b.d, o)
				// Several, because a server may have them wait for one another first.
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() {
						since := time.Now()
						_, err := row.Update(t.Context(), b.DB, func(context.Context, *sql.Tx, *account) error {
							t.Error("it has the row")
							return nil
						}, 1)
						took := time.Since(since)
						if held, ok := errors.AsType[*RowHeldError](err); !ok || !errors.Is(err, dibs.ErrHeld) || held.Err == nil {
							t.Errorf("after %v: %v", took, err)
						}
						if took < lock.Wait*9/10 { // the server's clock differs a little
							t.Errorf("it waited for %v; wanted are %v", took, lock.Wait)
						}
					})
				}
				wg.Wait()
				release()
				a, err := row.Update(t.Context(), b.DB, func(_ context.Context, _ *sql.Tx, a *account) error {
					a.Balance++
					return nil
				}, 1)
				if err != nil || a.Balance != 101 {
					t.Errorf("then: %+v, %v", a, err)
				}
			})
		})
	}
}

// A wait that is long enough ends when the row is free, and what limited it does not
// limit what fn does.
func TestUpdateWaits(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 1)
		release := b.holdRow(t, 1)
		o := b.accountOptions()
		if b.d != MySQL { // which cannot limit the wait of a statement
			o.Lock = RowLock{Wait: testkit.Limit}
		}
		row := newRow(t, b.d, o)
		settings := map[Dialect]string{
			PostgreSQL: "SELECT current_setting('lock_timeout') || ' ' || current_setting('statement_timeout')",
			MySQL:      "SELECT @@innodb_lock_wait_timeout",
			MariaDB:    "SELECT CONCAT(@@max_statement_time, ' ', @@innodb_lock_wait_timeout)",
			SQLite:     "PRAGMA busy_timeout",
		}
		var before, inside, after string
		ask := func(q interface {
			QueryRowContext(context.Context, string, ...any) *sql.Row
		}, s *string) {
			testkit.Check(t, q.QueryRowContext(t.Context(), settings[b.d]).Scan(s))
		}
		ask(b, &before)
		done := make(chan error, 1)
		go func() {
			_, err := row.Update(t.Context(), b.DB, func(_ context.Context, tx *sql.Tx, a *account) error {
				ask(tx, &inside)
				return nil
			}, 1)
			done <- err
		}()
		release()
		testkit.Check(t, <-done)
		b.SetMaxIdleConns(1)
		ask(b, &after)
		if inside != before || after != before {
			t.Errorf("the settings were %q, %q for fn, and %q then", before, inside, after)
		}
	})
}

// Workers take the next row that is not locked.
func TestUpdateSkipLocked(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 3)
		o := b.accountOptions()
		o.Select = "SELECT id, balance, version FROM account WHERE balance > 0 ORDER BY id LIMIT 1"
		o.Lock = RowLock{SkipLocked: true}
		row := newRow(t, b.d, o)
		take := func(fn func(id int64)) error {
			_, err := row.Update(t.Context(), b.DB, func(_ context.Context, _ *sql.Tx, a *account) error {
				fn(a.ID)
				a.Balance = 0
				return nil
			})
			return err
		}
		var ids []int64
		var last error
		var next func()
		next = func() {
			last = take(func(id int64) {
				ids = append(ids, id)
				if b.d != SQLite { // which allows no other transaction here
					next()
				}
			})
		}
		next()
		for b.d == SQLite && last == nil {
			next()
		}
		if len(ids) != 3 || ids[0] != 1 || ids[1] != 2 || ids[2] != 3 {
			t.Errorf("rows %v were taken", ids)
		}
		if err := take(func(id int64) { t.Errorf("row %d is left", id) }); !errors.Is(err, sql.ErrNoRows) {
			t.Error(err)
		}
	})
}

// What goes wrong, and that nothing is done then.
func TestUpdateFails(t *testing.T) {
	own := errors.New("fn's own")
	fail := func(_ context.Context, tx *sql.Tx, a *account) error {
		a.Balance = 0
		if _, err := tx.Exec("UPDATE account SET balance = 7"); err != nil {
			return err
		}
		return own
	}
	set := func(_ context.Context, _ *sql.Tx, a *account) error { a.Balance = 0; return nil }
	for name, c := range map[string]struct {
		change func(*RowOptions[account])
		fn     func(context.Context, *sql.Tx, *account) error
		id     int
		want   error
		text   string
	}{
		"fn":          {nil, fail, 1, own, "fn's own"},
		"no row":      {nil, set, 9, sql.ErrNoRows, "reading and locking the row"},
		"many rows":   {func(o *RowOptions[account]) { o.Select = "SELECT id, balance, version FROM account WHERE id > 0*$1" }, set, 1, errManyRows, "LIMIT 1"},
		"writes none": {func(o *RowOptions[account]) { o.Values = func(*account) []any { return []any{0, 9, 9} } }, set, 1, nil, "changed no row"},
		"writes many": {func(o *RowOptions[account]) {
			o.Update = "UPDATE account SET balance = $1 WHERE id >= $2 AND version >= $3"
		}, set, 1, nil, "changed 2 rows"},
		"bad SQL":       {func(o *RowOptions[account]) { o.Select = "SELECT nothing FROM account WHERE id = $1" }, set, 1, nil, "reading and locking the row"},
		"comment":       {func(o *RowOptions[account]) { o.Select += " -- the account" }, fail, 1, own, "fn's own"},
		"other columns": {func(o *RowOptions[account]) { o.Fields = func(a *account) []any { return []any{&a.ID} } }, set, 1, nil, "reading and locking the row"},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, b bench) {
				c := c
				if name == "writes none" && b.d.mysql() {
					c.text = "" // it does not say so
				}
				b.accounts(t, 2)
				o := b.accountOptions()
				if c.change != nil {
					c.change(o)
					o.Select, o.Update = b.sql(o.Select), b.sql(o.Update)
				}
				_, err := newRow(t, b.d, o).Update(t.Context(), b.DB, c.fn, c.id)
				if c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)) || c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("it ends with %v", err)
				}
				if got := b.number(t, "SELECT SUM(balance) FROM account"); got != 200 {
					t.Errorf("the balances are %d", got)
				}
			})
		})
	}
}

func TestRowOptions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*RowOptions[account])
		want   string
	}{
		"no Select":       {func(o *RowOptions[account]) { o.Select = " " }, "RowOptions.Select"},
		"Select locks":    {func(o *RowOptions[account]) { o.Select += " for\nupdate" }, "RowOptions.Lock"},
		"Select shares":   {func(o *RowOptions[account]) { o.Select += " LOCK IN SHARE MODE" }, "RowOptions.Lock"},
		"no Fields":       {func(o *RowOptions[account]) { o.Fields = nil }, "RowOptions.Fields"},
		"no Values":       {func(o *RowOptions[account]) { o.Values = nil }, "RowOptions.Values"},
		"no Update":       {func(o *RowOptions[account]) { o.Update = "" }, "RowOptions.Update"},
		"MaxTries":        {func(o *RowOptions[account]) { o.MaxTries = -1 }, "RowOptions.MaxTries"},
		"Wait":            {func(o *RowOptions[account]) { o.Lock.Wait = -2 }, "RowOptions.Lock.Wait"},
		"Wait for others": {func(o *RowOptions[account]) { o.Lock = RowLock{Wait: 1, SkipLocked: true} }, "SkipLocked"},
	} {
		o := bench{database: database{d: SQLite}}.accountOptions()
		c.change(o)
		if _, err := NewRow(SQLite, o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewRow[account](PostgreSQL, nil); err == nil {
		t.Error("no options describe a row")
	}
	if _, err := NewRow(0, bench{}.accountOptions()); err == nil {
		t.Error("no dialect will do")
	}
}
