package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"sync"
)

// manner is how several statements are sent by the application's connections.
type manner uint8

const (
	// apart: one after the other.
	apart manner = iota
	// several: together, up to the first that fails. The connections have
	// multiStatements=true.
	several
	// block: the same as one statement, as MariaDB has it.
	block
)

// acquaintance remembers what there is to know of the application's pool.
type acquaintance struct {
	mu     sync.Mutex
	known  bool
	manner manner
}

// meet finds it out, once: that its connections go to the store's server, and in what
// manner statements can be sent by them.
func (a *acquaintance) meet(ctx context.Context, s *Store, db *sql.DB) (manner, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known {
		return a.manner, nil
	}
	// The store takes a lock, which there is one of in each server, and asks for it
	// there. A replica has locks of its own, and so has each node of a cluster.
	name := "dibs " + newMark()
	var same bool
	err := use(ctx, s.front, func(c session) error {
		if err := c.run(ctx, s.script().raw("DO GET_LOCK('"+name+"',0)").done()); err != nil {
			return err
		}
		err := db.QueryRowContext(ctx, "SELECT IS_USED_LOCK('"+name+"') IS NOT NULL").Scan(&same)
		return cmp.Or(err, c.run(ctx, s.script().raw("DO RELEASE_LOCK('"+name+"')").done()))
	})
	switch {
	case err != nil:
		return apart, explain(err)
	case !same:
		return apart, ErrOtherDatabase
	}
	for _, try := range []struct {
		manner manner
		sql    string
	}{{block, "BEGIN NOT ATOMIC DO 0; DO 0; END"}, {several, "DO 0; DO 0"}} {
		_, err := db.ExecContext(ctx, try.sql)
		if err == nil {
			a.manner = try.manner
			break
		}
		if code(err) == 0 { // the server did not say that it does not know that
			return apart, explain(err)
		}
	}
	a.known = true
	return a.manner, nil
}
