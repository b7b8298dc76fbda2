package fault

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/stores/mysqlstore"
)

// mysqlWitness is the witness of a MySQL or MariaDB.
type mysqlWitness struct {
	db   *sql.DB
	conn *sql.Conn
}

func meetMySQL(ctx context.Context, url string) (witness, error) {
	config, _, err := mysqlstore.ParseURL(url, nil)
	if err != nil {
		return nil, err
	}
	config.Timeout = look
	config.Logger = &mysql.NopLogger{} // what goes wrong is returned
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &mysqlWitness{db, conn}, nil
}

// start is what begins at 0 with each start: seconds, and connections that were tried.
func (w *mysqlWitness) start(ctx context.Context) (start, error) {
	up, err := w.status(ctx, "Uptime")
	if err != nil {
		return start{}, err
	}
	connections, err := w.status(ctx, "Connections")
	return start{counts: []int{up, connections}}, err
}

func (w *mysqlWitness) now(ctx context.Context) (time.Time, error) {
	var s float64
	err := w.conn.QueryRowContext(ctx, "SELECT UNIX_TIMESTAMP(SYSDATE(6))").Scan(&s)
	return time.UnixMicro(int64(s * 1e6)), err
}

func (w *mysqlWitness) sever(ctx context.Context, from []*net.TCPAddr) (gone int, err error) {
	all, err := w.processes(ctx)
	if err != nil {
		return 0, err
	}
	for id, host := range all {
		if !slices.ContainsFunc(from, func(a *net.TCPAddr) bool { return a.String() == host }) {
			continue
		}
		if _, err := w.conn.ExecContext(ctx, "KILL "+strconv.FormatInt(id, 10)); err != nil {
			if isNumber(err, noSuchThread) {
				continue // it went by itself
			}
			return gone, err
		}
		// KILL sets a flag, and the connection ends when it looks at the flag.
		left := true
		await(evidence, func() bool {
			all, err = w.processes(ctx)
			_, left = all[id]
			return err != nil || !left
		})
		if err != nil {
			return gone, err
		}
		if !left {
			gone++
		}
	}
	return gone, nil
}

// Errors of the servers.
const (
	noSuchThread  = 1094
	cannotConvert = 3854
)

func isNumber(err error, number uint16) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && e.Number == number
}

// processes returns the hosts of the server's connections, by their IDs. MySQL returns an error
// if it cannot decode a statement that a connection is about to run; it can a moment later.
func (w *mysqlWitness) processes(ctx context.Context) (all map[int64]string, err error) {
	await(evidence, func() bool {
		all, err = w.processesNow(ctx)
		return !isNumber(err, cannotConvert)
	})
	return all, err
}

func (w *mysqlWitness) processesNow(ctx context.Context) (map[int64]string, error) {
	rows, err := w.conn.QueryContext(ctx, "SELECT ID, HOST FROM INFORMATION_SCHEMA.PROCESSLIST")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[int64]string{}
	for rows.Next() {
		var id int64
		var host string
		if err := rows.Scan(&id, &host); err != nil {
			return nil, err
		}
		all[id] = host
	}
	return all, rows.Err()
}

func (w *mysqlWitness) status(ctx context.Context, name string) (n int, err error) {
	var key string
	err = w.conn.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(&key, &n)
	return n, err
}

func (w *mysqlWitness) close() { _ = errors.Join(w.conn.Close(), w.db.Close()) } // the server may have ended it before
