package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/store"
)

// touch is a statement that changes a row.
func (b *bank) touch(row string) string {
	return fmt.Sprintf("UPDATE %s SET n=n+1 WHERE what='%s'", b.ledger, row)
}

// deadlock has the server roll a transaction back because of a deadlock, and returns the error.
func (b *bank) deadlock(ctx context.Context, tx *sql.Tx) error {
	other, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer other.Rollback()
	// The server undoes that which has changed less.
	for range 40 {
		if _, err := other.ExecContext(ctx, b.entry("other")); err != nil {
			return err
		}
	}
	if _, err := other.ExecContext(ctx, b.touch("left")); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, b.touch("right")); err != nil {
		return err
	}
	waits := make(chan error, 1)
	go func() {
		_, err := other.ExecContext(ctx, b.touch("right"))
		waits <- err
	}()
	_, err = tx.ExecContext(ctx, b.touch("left"))
	if other := <-waits; other != nil {
		return errors.Join(err, fmt.Errorf("the other one: %v", other))
	}
	return err
}

// TestDeadlockIgnored: a run that continues after a deadlock, whose statements are then
// committed one by one, has no answer kept: even when it begins a transaction of its
// own by SQL.
func TestDeadlockIgnored(t *testing.T) {
	inEachKind(t, func(t *testing.T, b *bank, tr store.Transactor) {
		b.query(t, "ALTER TABLE "+b.ledger+" ADD COLUMN id INT AUTO_INCREMENT PRIMARY KEY, ADD KEY (what); "+b.entry("left")+"; "+b.entry("right"))
		for _, goOn := range []string{"DO 0", "START TRANSACTION"} {
			ran := 0
			_, err := OnceTx(t.Context(), b.client, tr, goOn, nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
				ran++
				if _, err := tx.ExecContext(ctx, b.entry("before")); err != nil {
					return "", err
				}
				if err := b.deadlock(ctx, tx); code(err) != 1213 {
					t.Errorf("%v, want a deadlock", err)
				}
				if _, err := tx.ExecContext(ctx, goOn); err != nil {
					return "", err
				}
				_, err := tx.ExecContext(ctx, b.entry("after"))
				return "half of it", err
			})
			if !errors.Is(err, ErrTransactionEnded) || ran != 1 {
				t.Errorf("%s: after %d runs: %v, want ErrTransactionEnded", goOn, ran, err)
			}
			if n := b.entries(t, "before"); n != 0 {
				t.Errorf("%s: %d entries of what was rolled back", goOn, n)
			}
			if got, err := b.book(t.Context(), tr, goOn); err != nil || got != "booked "+goOn {
				t.Errorf("%s: then %q, %v", goOn, got, err)
			}
		}
	})
}

// TestLockWaits: a run that returns the error of a lock wait runs again. A run that does not
// continues, because the server rolled back only the statement. If the server rolls back the whole
// transaction, no answer is kept.
func TestLockWaits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		server func() *servertest.MariaDBServer
		all    bool // is undone
	}{
		"MariaDB":      {mariadb, false},
		"MySQL":        {servers["MySQL"], false},
		"MariaDB, all": {odd, true},
	} {
		if test.server == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, test.server(), "?innodb_lock_wait_timeout=1")
			tr := b.s.Transactions(b.db, nil)
			b.query(t, "ALTER TABLE "+b.ledger+" ADD PRIMARY KEY (what); "+b.entry("row"))
			for _, swallows := range []bool{false, true} {
				key := fmt.Sprint("swallows: ", swallows)
				ran := 0
				_, err := OnceTx(t.Context(), b.client, tr, key, nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
					if _, err := tx.ExecContext(ctx, b.entry(key)); err != nil {
						return "", err
					}
					if ran++; ran == 1 {
						other, err := b.db.BeginTx(ctx, nil)
						if err != nil {
							return "", err
						}
						defer other.Rollback()
						if _, err := other.ExecContext(ctx, b.touch("row")); err != nil {
							return "", err
						}
					}
					_, err := tx.ExecContext(ctx, b.touch("row"))
					if ran == 1 && code(err) != 1205 {
						t.Errorf("%v, want that the row is locked", err)
					}
					if swallows {
						err = nil
					}
					return "", err
				})
				n := b.entries(t, key)
				switch {
				case swallows && test.all:
					if !errors.Is(err, ErrTransactionEnded) || n != 0 {
						t.Errorf("%s: %v, %d entries; want ErrTransactionEnded", key, err, n)
					}
				case err != nil || n != 1 || swallows != (ran == 1):
					t.Errorf("%s: %v, %d entries after %d runs", key, err, n, ran)
				}
			}
		})
	}
}

// TestRenewedInTransaction: a lease may be renewed while the transaction is open. On
// MariaDB with innodb_snapshot_isolation, at the levels with a snapshot, that makes for
// a conflict, and a run anew.
func TestRenewedInTransaction(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		params string
		level  sql.IsolationLevel
		runs   int
	}{
		"MySQL":                   {"", sql.LevelRepeatableRead, 1},
		"MySQL, serializable":     {"", sql.LevelSerializable, 1},
		"MariaDB":                 {"", sql.LevelRepeatableRead, 1},
		"MariaDB, snapshot":       {"?innodb_snapshot_isolation=1", sql.LevelRepeatableRead, 2},
		"MariaDB, read committed": {"?innodb_snapshot_isolation=1", sql.LevelReadCommitted, 1},
	} {
		server := serverOf(name)
		if server == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, server(), test.params)
			b.query(t, b.entry("row"))
			ran := 0
			_, err := OnceTx(t.Context(), b.client, b.s.Transactions(b.db, &sql.TxOptions{Isolation: test.level}), "k", nil, func(ctx context.Context, tx *sql.Tx) (n int, err error) {
				ran++
				if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+b.ledger).Scan(&n); err != nil { // its snapshot
					return 0, err
				}
				if _, err := tx.ExecContext(ctx, b.entry("k")); err != nil {
					return 0, err
				}
				if ran == 1 {
					lease, _ := dibs.FromContext(ctx)
					return 0, lease.Save(ctx, []byte("half")) // which renews it
				}
				return 0, nil
			})
			// A renewal that comes by itself on a slow machine makes one more run.
			if n := b.entries(t, "k"); err != nil || ran < test.runs || test.runs == 1 && ran > 1 || n != 1 {
				t.Errorf("%v, %d entries after %d runs; want at least %d", err, n, ran, test.runs)
			}
		})
	}
}
