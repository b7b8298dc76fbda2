//go:build nightly

package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestGalera: on a Galera cluster, in which each node has locks of its own, what does not exclude the
// other node is refused, and what the page of databases calls right is right.
func TestGalera(t *testing.T) {
	t.Parallel()
	nodes := servertest.Galera(t, &servertest.MariaDBOptions{NoSync: true})
	var dbs [2]*sql.DB
	for i, node := range nodes {
		dbs[i] = openDB(t, "mysql", node.DSN())
	}
	// made waits until the second node has a table of the first.
	made := func(t *testing.T, name string) {
		testkit.Eventually(t, name, func() bool { return len(nodes[1].Query("SHOW TABLES LIKE '"+name+"'")) > 0 })
	}
	t.Run("Named", func(t *testing.T) {
		for _, db := range dbs {
			if _, err := NewNamed(t.Context(), db, nil); !errors.Is(err, ErrLocal) || !strings.Contains(err.Error(), "a Galera cluster") {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("Sequence", func(t *testing.T) {
		s, err := NewSequence(MariaDB, nil)
		testkit.Must(t, err)
		testkit.Must(t, s.Migrate(t.Context(), dbs[0]))
		made(t, "dibs_sequence")
		const each, workers = 25, 2
		var mu sync.Mutex
		var taken []int64
		var working sync.WaitGroup
		for i := range len(dbs) * workers {
			working.Go(func() {
				for range each {
					var n int64
					err := Transact(t.Context(), MariaDB, dbs[i%len(dbs)], &TransactOptions{MaxTries: 1000}, func(ctx context.Context, tx *sql.Tx) (err error) {
						n, err = s.Next(ctx, tx, "invoice")
						return err
					})
					testkit.Check(t, err)
					mu.Lock()
					taken = append(taken, n)
					mu.Unlock()
				}
			})
		}
		working.Wait()
		slices.Sort(taken)
		for i, n := range taken {
			if n != int64(i+1) {
				t.Fatalf("took %d, want 1 to %d without a gap", taken, len(dbs)*workers*each)
			}
		}
	})
	t.Run("Row", func(t *testing.T) { galeraRow(t, nodes, dbs, made) })
	t.Run("FenceCheck", func(t *testing.T) { galeraFenceCheck(t, nodes, dbs, made) })
	t.Run("LockRows", func(t *testing.T) {
		nodes[0].Query("CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL) ENGINE = InnoDB; INSERT INTO account VALUES (1, 0)")
		made(t, "account")
		testkit.Eventually(t, "the account", func() bool { return len(nodes[1].Query("SELECT id FROM account")) > 0 })
		var working sync.WaitGroup
		for _, db := range dbs {
			working.Go(func() {
				for range 25 {
					testkit.Check(t, Transact(t.Context(), MariaDB, db, &TransactOptions{MaxTries: 1000}, func(ctx context.Context, tx *sql.Tx) error {
						if _, err := LockRows(ctx, MariaDB, tx, nil, "account", "id", 1); err != nil {
							return err
						}
						var balance int
						if err := tx.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = 1").Scan(&balance); err != nil {
							return err
						}
						_, err := tx.ExecContext(ctx, "UPDATE account SET balance = ? WHERE id = 1", balance+1)
						return err
					}))
				}
			})
		}
		working.Wait()
		if got := nodes[0].Query("SET wsrep_sync_wait = 15; SELECT balance FROM account")[0][0]; got != "50" {
			t.Errorf("the balance is %s, want 50", got)
		}
		// Of two transactions that lock the same row and change others, the README says that both commit.
		var both [2]*sql.Tx
		for i, db := range dbs {
			tx, err := db.BeginTx(t.Context(), nil)
			testkit.Must(t, err)
			_, err = LockRows(t.Context(), MariaDB, tx, nil, "account", "id", 1)
			testkit.Must(t, err)
			_, err = tx.ExecContext(t.Context(), "INSERT INTO account VALUES (?, 0)", 10+i)
			testkit.Must(t, err)
			both[i] = tx
		}
		for _, tx := range both {
			testkit.Check(t, tx.Commit())
		}
	})
}

// galeraRow: both nodes count in one row.
func galeraRow(t *testing.T, nodes [2]*servertest.MariaDBServer, dbs [2]*sql.DB, made func(*testing.T, string)) {
	type counter struct{ n, version int }
	nodes[0].Query("CREATE TABLE counter (id INT PRIMARY KEY, n INT NOT NULL, version INT NOT NULL) ENGINE = InnoDB; INSERT INTO counter VALUES (1, 0, 0)")
	made(t, "counter")
	testkit.Eventually(t, "the counter", func() bool { return len(nodes[1].Query("SELECT id FROM counter")) > 0 })
	row, err := NewRow(MariaDB, &RowOptions[counter]{
		Select:   "SELECT n, version FROM counter WHERE id = ?",
		Fields:   func(c *counter) []any { return []any{&c.n, &c.version} },
		Update:   "UPDATE counter SET n = ?, version = version + 1 WHERE id = 1 AND version = ?",
		Values:   func(c *counter) []any { return []any{c.n, c.version} },
		MaxTries: 1000,
	})
	testkit.Must(t, err)
	var working sync.WaitGroup
	for _, db := range dbs {
		working.Go(func() {
			for range 10 {
				_, err := row.Update(t.Context(), db, func(_ context.Context, _ *sql.Tx, c *counter) error { c.n++; return nil }, 1)
				testkit.Check(t, err)
				_, err = row.UpdateOptimistic(t.Context(), db, func(_ context.Context, c *counter) error { c.n++; return nil }, 1)
				testkit.Check(t, err)
			}
		})
	}
	working.Wait()
	if got := nodes[0].Query("SET wsrep_sync_wait = 15; SELECT n FROM counter")[0][0]; got != "40" {
		t.Errorf("counted to %s, want 40", got)
	}
}

// galeraFenceCheck: the first node admits a holder again, and does not know yet that the second node has
// admitted a later one. A table that is locked keeps back what comes from the second node.
func galeraFenceCheck(t *testing.T, nodes [2]*servertest.MariaDBServer, dbs [2]*sql.DB, made func(*testing.T, string)) {
	c, err := NewFenceCheck(MariaDB, nil)
	testkit.Must(t, err)
	testkit.Must(t, c.Migrate(t.Context(), dbs[0]))
	nodes[0].Query("CREATE TABLE ledger (who VARCHAR(9) PRIMARY KEY) ENGINE = InnoDB; CREATE TABLE barrier (id INT PRIMARY KEY) ENGINE = InnoDB")
	made(t, "barrier")
	write := func(db *sql.DB, fence uint64, who string) *sql.Tx {
		tx, err := db.BeginTx(t.Context(), nil)
		testkit.Must(t, err)
		testkit.Must(t, c.Admit(t.Context(), tx, "account 7", fence))
		_, err = tx.ExecContext(t.Context(), "INSERT INTO ledger VALUES (?)", who)
		testkit.Must(t, err)
		return tx
	}
	testkit.Must(t, write(dbs[0], 5, "first").Commit())
	testkit.Eventually(t, "the first write", func() bool { return len(nodes[1].Query("SELECT * FROM ledger")) == 1 })
	late := write(dbs[0], 5, "late")
	var session int64
	testkit.Must(t, late.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&session))
	keeper, err := dbs[0].Conn(t.Context())
	testkit.Must(t, err)
	defer keeper.Close()
	_, err = keeper.ExecContext(t.Context(), "LOCK TABLES barrier READ")
	testkit.Must(t, err)
	nodes[1].Query("INSERT INTO barrier VALUES (1)")
	testkit.Must(t, write(dbs[1], 6, "next").Commit())
	outcome := make(chan error, 1)
	go func() { outcome <- late.Commit() }()
	testkit.Eventually(t, "the commit", func() bool {
		state := nodes[0].Query(fmt.Sprintf("SELECT state FROM information_schema.processlist WHERE id = %d", session))
		return len(state) == 1 && state[0][0] == "Waiting for certification"
	})
	_, err = keeper.ExecContext(t.Context(), "UNLOCK TABLES")
	testkit.Must(t, err)
	if err := testkit.Await(t, "the outcome", outcome); !MariaDB.Conflicted(err) {
		t.Errorf("the late holder commits: %v", err)
	}
	for i, node := range nodes {
		if got := node.Query("SET wsrep_sync_wait = 15; SELECT who FROM ledger ORDER BY who"); len(got) != 2 || got[1][0] != "next" {
			t.Errorf("node %d has %v", i, got)
		}
	}
}
