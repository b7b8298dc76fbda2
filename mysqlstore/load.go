package mysqlstore

import (
	"context"
	"database/sql"
	"slices"

	"github.com/dibs-go/dibs"
)

const (
	// clock is the server's time when a statement begins.
	clock = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01 00:00:00',UTC_TIMESTAMP(6))"

	// atOnce is how many places of a queue are read with it, and when these are not enough
	// for a decision, so many times as many.
	atOnce   = 72
	thenMore = 64
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

// tokens are, of each key, those whose places have to be known.
type tokens map[string][]dibs.Token

// batch is some keys that are worked on in one transaction.
type batch struct {
	names  namer
	how    load
	turn   int64 // see state
	wants  tokens
	limit  int64             // how many places of each queue are loaded
	keys   []string          // in their order
	states map[string]*state // of all of them
}

// work is a transaction on some keys: they are loaded, do changes them, and what is
// different then is written.
func (s *Store) work(ctx context.Context, db *sql.DB, how load, wants tokens, do func(*batch)) error {
	b := &batch{names: s.names, how: how, turn: micros(s.options.turn), wants: wants, limit: atOnce}
	err := use(ctx, db, func(c *sql.Conn) error {
		for begun := false; ; begun = how != glancing {
			ask := s.script()
			if !begun {
				ask.raw(opens[how]).done()
			}
			if b.load(ask); how == glancing {
				ask.raw("COMMIT").done()
			}
			if err := ask.run(ctx, c); err != nil {
				return err
			}
			if !b.loaded() {
				return errNoMeta
			}
			if do(b); !b.short() {
				break
			}
			b.limit *= thenMore
		}
		if how == glancing {
			return nil
		}
		last := s.script()
		b.write(last)
		return last.raw("COMMIT;"+ends).done().run(ctx, c)
	})
	if err == nil && how < looking {
		for _, st := range b.states {
			s.waiting.told(st.turns)
		}
	}
	return err
}

// short reports whether more of a queue is needed than was loaded.
func (b *batch) short() bool {
	return slices.ContainsFunc(b.keys, func(k string) bool { return b.states[k].short })
}

// load writes the statements that lock the rows and read them, and what belongs to them.
func (b *batch) load(s *script) {
	b.keys, b.states = sorted(b.wants), map[string]*state{}
	for _, k := range b.keys {
		b.states[k] = &state{
			k: k, looks: b.how >= looking, turn: b.turn, saved: map[int64]bool{}, others: map[holderID]lease{},
			queue: queue{was: map[placeID]place{}},
		}
	}
	if b.how == creating {
		s.raw("INSERT INTO @key (k,fence) VALUES ")
		for i, k := range b.keys {
			if i > 0 {
				s.raw(",")
			}
			s.row(k, int64(0))
		}
		s.raw(" ON DUPLICATE KEY UPDATE fence=fence").done()
	}
	in(s.raw("SELECT "+keyColumns+" FROM @key FORCE INDEX (PRIMARY) WHERE k"), b.keys).raw(" ORDER BY k")
	switch b.how {
	case creating, locking:
		s.raw(" FOR UPDATE")
	case passing:
		s.raw(" FOR UPDATE SKIP LOCKED")
	}
	s.asks(b.addRow)
	// What a new row must rise above is known now that it stands: no row is deleted
	// without raising the mark before.
	s.raw("SET @N=" + clock).done()
	s.raw("SELECT @N,fence FROM @meta").asks(func(r *reading) {
		var now, mark int64
		r.scan(&now, &mark)
		for _, st := range b.states {
			if st.now = now; st.fence == 0 {
				st.fence = mark
			}
		}
	})
	in(s.raw("SELECT "+holderColumns+" FROM @holder FORCE INDEX (PRIMARY) WHERE k"), b.keys).raw(" ORDER BY k,ends").asks(b.addHolder)
	in(s.raw("SELECT k,fence FROM @progress WHERE k"), b.keys).asks(func(r *reading) {
		var k string
		var fence int64
		r.scan(&k, &fence)
		b.states[k].saved[fence] = true
	})
	for _, k := range b.keys {
		b.readQueue(s, b.states[k])
	}
}

// addRow makes a state of a key's row.
func (b *batch) addRow(r *reading) {
	var k string
	w := row{there: true}
	r.scan(&k).scan(w.columns()...)
	st := b.states[k]
	if w.holder.token.IsZero() {
		w.holder = lease{}
	} else {
		w.holder.permits, w.holder.weight = 1, 1
		l := w.holder
		l.fence = w.fence
		st.holders = append(st.holders, l)
	}
	st.was, st.fence, st.free, st.record = w, w.fence, w.free, w.record
}

// addHolder adds a lease that has a row of its own to its key's.
func (b *batch) addHolder(r *reading) {
	var k string
	var l lease
	r.scan(&k).scan(l.columns()...)
	st := b.states[k]
	st.others[holderID{l.token, l.abandoned}] = l
	if l.abandoned {
		st.lost = &l
	} else {
		st.holders = append(st.holders, l)
	}
}

// readQueue reads the first places of a queue, the last one, and those of the tokens that
// are asked for.
func (b *batch) readQueue(s *script, st *state) {
	part := func(n, end string) {
		s.raw("(SELECT " + n + "," + waiterColumns + " FROM @waiter WHERE k=").value(st.k).raw(end)
	}
	part("1", " ORDER BY seq LIMIT ")
	s.value(b.limit).raw(") UNION ALL ")
	part("0", " ORDER BY seq DESC LIMIT 1)")
	if wants := b.wants[st.k]; len(wants) > 0 {
		s.raw(" UNION ALL ")
		part("0", " AND token")
		in(s, wants).raw(")")
	}
	n, q := int64(0), &st.queue
	q.complete = true
	s.asks(func(r *reading) {
		var first bool
		var p place
		r.scan(&first, new(string)).scan(p.columns()...)
		if first {
			n++
			q.complete = n < b.limit
			q.known = max(q.known, p.seq-1) // there may be more with that seq
		}
		q.add(p, st.now)
	})
}

// loaded reports whether all has been read, and leaves out the rows that were passed over.
func (b *batch) loaded() bool {
	if b.how == passing {
		b.keys = slices.DeleteFunc(b.keys, func(k string) bool { return !b.states[k].was.there })
	}
	return len(b.keys) == 0 || b.states[b.keys[0]].now != 0
}
