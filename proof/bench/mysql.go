package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/mysqlstore"
)

// namedName is MariaDB's own lock on a session for each caller.
const namedName = "GET_LOCK"

// mysqlBench is a MariaDB server with its own settings, which waits for its disk, and
// everybody who is measured on it.
type mysqlBench struct {
	*contestants
	server *servertest.MariaDBServer
}

func newMySQLBench(ctx context.Context) (b *mysqlBench, err error) {
	b = &mysqlBench{contestants: newContestants()}
	defer func() {
		if err != nil {
			b.end()
		}
	}()
	b.server = servertest.MariaDB(b.scope, &servertest.MariaDBOptions{MaxConnections: 5 * callersConns})
	path, err := b.server.Do("SELECT @@pid_file")
	if err != nil {
		return b, err
	}
	if err := b.serves(path[0][0]); err != nil {
		return b, err
	}
	for range 2 { // processes
		store, err := mysqlstore.Open(ctx, b.server.URL(), &mysqlstore.Options{Migrate: true})
		if err != nil {
			return b, err
		}
		if err := b.enter(store, store.Close); err != nil {
			return b, err
		}
	}
	err = b.enterSingly(func() (dibs.Store, func() error, error) {
		store, err := mysqlstore.Open(ctx, b.server.URL(), &mysqlstore.Options{PruneEvery: -1})
		if err != nil {
			return nil, nil, err
		}
		return store, store.Close, nil
	})
	if err != nil {
		return b, err
	}
	db, err := sql.Open("mysql", b.server.DSN()+"?tx_isolation=%27READ-COMMITTED%27")
	if err != nil {
		return b, err
	}
	sqlPool(db)
	b.close = append(b.close, func() { _ = db.Close() })
	hand := mysqlByHand{}
	if _, err := db.ExecContext(ctx, "CREATE TABLE by_hand (k VARBINARY(577) PRIMARY KEY, token BINARY(16) NOT NULL, ends DATETIME(6) NOT NULL)"); err != nil {
		return b, err
	}
	if hand.take, err = db.PrepareContext(ctx, `INSERT INTO by_hand VALUES (?, ?, NOW(6) + INTERVAL 30 SECOND) ON DUPLICATE KEY UPDATE
		token = IF(ends < NOW(6), VALUES(token), token), ends = IF(token = VALUES(token), VALUES(ends), ends)`); err != nil {
		return b, err
	}
	if hand.end, err = db.PrepareContext(ctx, "DELETE FROM by_hand WHERE k = ? AND token = ?"); err != nil {
		return b, err
	}
	b.lockers[byHandName] = []locker{hand}
	b.lockers[namedName] = []locker{namedLocker{db}}
	return b, nil
}

// openMySQL is newMySQLBench for those who ask the server nothing.
func openMySQL(ctx context.Context) (*contestants, error) {
	b, err := newMySQLBench(ctx)
	if err != nil {
		return nil, err
	}
	return b.contestants, nil
}

// mysqlByHand is byHandLocker on MariaDB. What the server gave up for the sake of
// others it does again.
type mysqlByHand struct{ take, end *sql.Stmt }

func (l mysqlByHand) lock(ctx context.Context, key string, section func()) error {
	token := dibs.NewToken()
	if err := retried(func() error { return changes(l.take.ExecContext(ctx, key, token[:])) }); err != nil {
		return err
	}
	section()
	return retried(func() error { return changes(l.end.ExecContext(ctx, key, token[:])) })
}

// changes returns errHeld for a statement that changed nothing.
func changes(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errHeld, err)
	}
	return nil
}

// retried does something until it is no deadlock.
func retried(do func() error) error {
	for {
		if err := do(); !deadlocked(err) {
			return err
		}
	}
}

// deadlocked reports whether the server gave a statement up because of others: a
// deadlock, or a lock that was waited for too long.
func deadlocked(err error) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && (e.Number == 1213 || e.Number == 1205)
}

type namedLocker struct{ db *sql.DB }

func (l namedLocker) lock(ctx context.Context, key string, section func()) error {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var got int
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 60)", key).Scan(&got); err != nil {
		return err
	}
	section()
	_, err = conn.ExecContext(context.WithoutCancel(ctx), "DO RELEASE_LOCK(?)", key)
	return err
}

// mysqlDeadlocks counts the deadlocks that callers see when many of them, in two
// processes, want the same few keys.
func mysqlDeadlocks(ctx context.Context, c config) (figure, error) {
	b, err := newMySQLBench(ctx)
	if err != nil {
		return figure{}, err
	}
	defer b.end()
	var f figure
	var seen atomic.Int64
	cycles := 0.0
	for range c.rounds {
		seen.Store(0)
		perSecond, err := rate(ctx, callersConns, 2*c.round, func(ctx context.Context, g, i int) error {
			processes := b.lockers[ours]
			err := processes[g%len(processes)].lock(ctx, "shared "+strconv.Itoa((g+i)%8), func() {})
			if deadlocked(err) {
				seen.Add(1)
				return nil
			}
			return err
		})
		if err != nil {
			return f, err
		}
		f.value = append(f.value, float64(seen.Load()))
		cycles += perSecond * 2 * c.round.Seconds()
	}
	rows, err := b.server.Do("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
	if err != nil {
		return f, err
	}
	server := "an unknown number"
	if len(rows) == 1 && len(rows[0]) == 2 {
		server = rows[0][1]
	}
	f.detail = fmt.Sprintf("in a round, by 64 callers in two processes on 8 keys; %s cycles in all; the server resolved %s by itself and the store tried these again", count(cycles), server)
	return f, nil
}
