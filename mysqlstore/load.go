package mysqlstore

import (
	"context"
	"database/sql"

	"github.com/dibs-go/dibs/internal/engine"
)

const (
	keyColumns    = "k," + engine.RowColumns
	holderColumns = "k," + engine.LeaseColumns
	waiterColumns = "k," + engine.PlaceColumns

	// clock is the server's time when a statement begins.
	clock = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01 00:00:00',UTC_TIMESTAMP(6))"
)

// load is how keys are loaded.
type load uint8

const (
	creating load = iota // lock their rows, and make those that are missing
	locking              // lock their rows
	passing              // lock their rows, but for those that somebody else has locked
	looking              // as they are at one moment, without a lock
	glancing             // the same, and nothing else is read
)

// opens is how their transactions begin.
var opens = map[load]string{
	creating: begins, locking: begins, passing: begins,
	looking:  "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;SET SESSION wait_timeout=5;START TRANSACTION READ ONLY",
	glancing: "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;START TRANSACTION READ ONLY",
}

// work is a transaction on some keys: they are loaded, do changes them, and what is
// different then is written.
func (s *Store) work(ctx context.Context, db *sql.DB, how load, wants engine.Tokens, do func(*engine.Batch)) error {
	b := engine.NewBatch(wants, how >= looking, engine.Micros(s.options.turn))
	err := use(ctx, db, func(c *sql.Conn) error {
		for begun := false; ; begun = how != glancing {
			ask := s.script()
			if !begun {
				ask.raw(opens[how]).done()
			}
			ok := false
			if loadBatch(ask, b, how, &ok); how == glancing {
				ask.raw("COMMIT").done()
			}
			if err := ask.run(ctx, c); err != nil {
				return err
			}
			if !ok {
				return errNoMeta
			}
			if how == passing {
				b.Locked()
			}
			if do(b); !b.Short() {
				break
			}
		}
		if how == glancing {
			return nil
		}
		last := s.script()
		write(last, b.Changes())
		return last.raw("COMMIT;"+ends).done().run(ctx, c)
	})
	if err == nil && how < looking {
		s.waiting.told(b.Turns())
	}
	return err
}

// loadBatch writes the statements that lock the rows and read them, and what belongs to
// them. ok is set when the server knows of the store.
func loadBatch(s *script, b *engine.Batch, how load, ok *bool) {
	b.Begin()
	if how == creating {
		s.raw("INSERT INTO @key (k,fence) VALUES ")
		for i, k := range b.Keys {
			if i > 0 {
				s.raw(",")
			}
			s.row(k, int64(0))
		}
		s.raw(" ON DUPLICATE KEY UPDATE fence=fence").done()
	}
	in(s.raw("SELECT "+keyColumns+" FROM @key FORCE INDEX (PRIMARY) WHERE k"), b.Keys).raw(" ORDER BY k")
	switch how {
	case creating, locking:
		s.raw(" FOR UPDATE")
	case passing:
		s.raw(" FOR UPDATE SKIP LOCKED")
	}
	var k string
	s.asks(func(r *reading) {
		var w engine.Row
		r.scan(&k).scan(w.Fields()...)
		b.AddRow(k, w)
	})
	// What a new row must rise above is known now that it stands: no row is deleted
	// without raising the mark before.
	s.raw("SET @N=" + clock).done()
	s.raw("SELECT @N,fence FROM @meta").asks(func(r *reading) {
		var now, mark int64
		r.scan(&now, &mark)
		b.Now(now, mark)
		*ok = true
	})
	in(s.raw("SELECT "+holderColumns+" FROM @holder FORCE INDEX (PRIMARY) WHERE k"), b.Keys).raw(" ORDER BY k,ends").asks(func(r *reading) {
		var l engine.Lease
		r.scan(&k).scan(l.Fields()...)
		b.AddLease(k, l)
	})
	in(s.raw("SELECT k,fence FROM @progress WHERE k"), b.Keys).asks(func(r *reading) {
		var fence int64
		r.scan(&k, &fence)
		b.AddSaved(k, fence)
	})
	for _, k := range b.Keys {
		readQueue(s, b, k)
	}
}

// readQueue reads the first places of a queue, the last one, and those of the tokens that
// are asked for.
func readQueue(s *script, b *engine.Batch, k string) {
	part := func(n, end string) {
		s.raw("(SELECT " + n + "," + waiterColumns + " FROM @waiter WHERE k=").value(k).raw(end)
	}
	part("1", " ORDER BY seq LIMIT ")
	s.value(b.Limit).raw(") UNION ALL ")
	part("0", " ORDER BY seq DESC LIMIT 1)")
	if wants := b.Wants[k]; len(wants) > 0 {
		s.raw(" UNION ALL ")
		part("0", " AND token")
		in(s, wants).raw(")")
	}
	s.asks(func(r *reading) {
		var first bool
		var k string
		var p engine.Place
		r.scan(&first, &k).scan(p.Fields()...)
		b.AddPlace(k, first, p)
	})
}
