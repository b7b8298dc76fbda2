package mysqlstore

import (
	"context"
	"maps"
	"slices"

	"github.com/dibs-go/dibs"
)

const (
	keyColumns = "k,fence,permits,busy,queued,saved,token,attempt,since,ends,offered,once,inherits,seq,fingerprint,owner," +
		"abandoned,lost_token,lost_fence,lost_attempt,lost_since,lost_ends,lost_once,lost_inherits,lost_fingerprint,lost_owner," +
		"rec_token,rec_written,rec_ends,rec_fingerprint"
	holderColumns = "k,token,fence,attempt,since,ends,offered,once,inherits,seq,fingerprint,owner"
	waiterColumns = "k,seq,token,kind,ends,lasts,once,max_age,tells,fingerprint,owner,hold,pressed"

	// clock is the server's time when a statement begins.
	clock = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01 00:00:00',UTC_TIMESTAMP(6))"

	// atOnce is how many places of a queue are read with it, and thenMore how many when
	// these are not enough.
	atOnce   = 72
	thenMore = 4096
)

// runner carries scripts out: a session of the store's own, or a transaction of the
// application's.
type runner interface {
	run(ctx context.Context, s *script) error
}

// load is how keys are loaded.
type load uint8

const (
	creating load = iota // lock their rows, and make those that are missing
	locking              // lock their rows
	looking              // as they are at one moment, without a lock
)

// batch is some keys that are worked on in one transaction.
type batch struct {
	names  namer
	on     runner
	states map[string]*state
	keys   []string // in their order
	// tokens are those of each key whose places have to be known.
	tokens map[string][]dibs.Token
	how    load
	turn   int64 // see state
}

func (s *Store) newBatch(on runner, how load) *batch {
	b := newBatch(s.names, on, how)
	b.turn = micros(s.options.turn)
	return b
}

func newBatch(names namer, on runner, how load) *batch {
	return &batch{names: names, on: on, how: how, turn: micros(dibs.Turn), states: map[string]*state{}, tokens: map[string][]dibs.Token{}}
}

// want adds a key, and a token of it.
func (b *batch) want(k string, t dibs.Token) {
	b.tokens[k] = append(b.tokens[k], t)
}

// load begins: it locks the rows and reads them, and all that is known to be needed.
// first are statements that come before; deep are the keys of which it is likely that
// there is more than a row.
func (b *batch) load(ctx context.Context, first string, deep map[string]bool) error {
	b.keys = slices.Sorted(maps.Keys(b.tokens))
	s := &script{}
	s.raw(first)
	if b.how == creating {
		s.raw(b.names.sql("INSERT INTO @key (k,fence,permits) VALUES "))
		for i, k := range b.keys {
			if i > 0 {
				s.raw(",")
			}
			s.raw("(").bytes(k).raw(",0,1)")
		}
		s.raw(" ON DUPLICATE KEY UPDATE permits=permits").done()
	}
	var now, mark int64
	s.raw(b.names.sql("SELECT " + keyColumns + " FROM @key FORCE INDEX (PRIMARY) WHERE k IN (")).keys(b.keys).raw(") ORDER BY k")
	if b.how != looking {
		s.raw(" FOR UPDATE")
	}
	s.asks(func(r *reading) error { b.addRow(r); return r.err })
	// What a new row must rise above is known now that it stands: no row is deleted
	// without raising the mark before.
	s.raw(b.names.sql("SELECT " + clock + ",fence FROM @meta")).asks(func(r *reading) error {
		now, mark = r.int(), r.int()
		return r.err
	})
	var keys []string
	for _, k := range b.keys {
		if deep[k] {
			keys = append(keys, k)
		}
	}
	b.details(ctx, s, keys)
	if err := b.on.run(ctx, s); err != nil {
		return err
	}
	if now == 0 {
		return errNoMeta
	}
	keys = keys[:0]
	for _, k := range b.keys {
		st := b.states[k]
		if st == nil {
			st = newState(k)
			st.permits = 1
			b.states[k] = st
		}
		st.now, st.turn = now, b.turn
		st.queue.complete = st.queue.complete || !st.was.queued
		if st.fence == 0 {
			st.fence = mark
		}
		if !deep[k] && (st.was.queued || st.was.saved || st.was.permits > 1) {
			keys = append(keys, k)
		}
	}
	if len(keys) > 0 {
		s = &script{}
		b.details(ctx, s, keys)
		if err := b.on.run(ctx, s); err != nil {
			return err
		}
	}
	return b.seats(ctx)
}

// seats reads the places that leases have taken, as far as they are not known yet.
func (b *batch) seats(ctx context.Context) error {
	s := &script{}
	for _, k := range b.keys {
		st := b.states[k]
		for i := range st.holders {
			if seq := st.holders[i].seq; seq != 0 && !st.queue.complete && st.queue.at(seq) == nil {
				s.raw(b.names.sql("SELECT " + waiterColumns + " FROM @waiter WHERE k=")).bytes(k).raw(" AND seq=").int(seq)
				s.asks(func(r *reading) error {
					r.next() // the key
					st.queue.add(readPlace(r))
					return r.err
				})
			}
		}
	}
	if len(s.ends) == 0 {
		return nil
	}
	return b.on.run(ctx, s)
}

// readPlace reads a row of the table of waiters, behind its key.
func readPlace(r *reading) place {
	return place{
		seq: r.int(), token: r.token(), kind: r.int(), ends: r.int(), lasts: r.int(), once: r.bool(), maxAge: r.int(),
		tells: r.bool(), fingerprint: r.fingerprint(), owner: r.string(), hold: r.int(), pressed: r.bool(),
	}
}

// addRow makes a state of a key's row.
func (b *batch) addRow(r *reading) {
	st := newState(r.string())
	w := &st.was
	w.there = true
	w.fence, w.permits, w.busy, w.queued, w.saved = r.int(), r.int(), r.bool(), r.bool(), r.bool()
	h := &w.holder
	h.token, h.attempt, h.since, h.ends = r.token(), r.int(), r.int(), r.int()
	h.offered, h.once, h.inherits, h.seq = r.bool(), r.bool(), r.bool(), r.int()
	h.fingerprint, h.owner = r.fingerprint(), r.string()
	w.abandoned = r.int()
	l := &w.lost
	l.token, l.fence, l.attempt, l.since, l.ends = r.token(), r.int(), r.int(), r.int(), r.int()
	l.once, l.inherits, l.fingerprint, l.owner = r.bool(), r.bool(), r.fingerprint(), r.string()
	w.record = record{token: r.token(), written: r.int(), ends: r.int(), fingerprint: r.fingerprint()}
	st.fence, st.permits, st.abandoned, st.record = w.fence, w.permits, w.abandoned, w.record
	if !h.token.IsZero() {
		st.holders = append(st.holders, *h)
		st.holders[0].fence = w.fence
	}
	if !l.token.IsZero() {
		lost := *l
		st.lost = &lost
	}
	b.states[st.k] = st
}

// details reads what is not in the rows of keys.
func (b *batch) details(ctx context.Context, s *script, keys []string) {
	if len(keys) == 0 {
		return
	}
	s.raw(b.names.sql("SELECT " + holderColumns + " FROM @holder WHERE k IN (")).keys(keys).raw(") ORDER BY k, fence")
	s.asks(b.addHolder)
	s.raw(b.names.sql("SELECT k, token FROM @progress WHERE k IN (")).keys(keys).raw(")")
	s.asks(func(r *reading) error {
		if st := b.states[r.string()]; st != nil {
			st.saved[r.token()] = true
		}
		return r.err
	})
	for _, k := range keys {
		b.readQueue(ctx, s, k, 0)
	}
}

// addHolder adds a lease that has a row of its own to its key's.
func (b *batch) addHolder(r *reading) error {
	st := b.states[r.string()]
	if st == nil {
		return r.err
	}
	l := lease{
		token: r.token(), fence: r.int(), attempt: r.int(), since: r.int(), ends: r.int(), offered: r.bool(), once: r.bool(),
		inherits: r.bool(), seq: r.int(), fingerprint: r.fingerprint(), owner: r.string(),
	}
	st.holders = append(st.holders, l)
	st.others[l.token] = l
	return r.err
}

// readQueue reads the next places of a queue behind that seq; and, the first time, the
// last one and those of the tokens that are asked for.
func (b *batch) readQueue(ctx context.Context, s *script, k string, behind int64) {
	limit := int64(atOnce)
	if behind > 0 {
		limit = thenMore
	}
	part := func(n, end string) {
		s.raw(b.names.sql("(SELECT " + n + "," + waiterColumns + " FROM @waiter WHERE k=")).bytes(k).raw(end)
	}
	part("0", " AND seq>")
	s.int(behind).raw(" ORDER BY seq LIMIT ").int(limit).raw(")")
	if behind == 0 {
		s.raw(" UNION ALL ")
		part("1", " ORDER BY seq DESC LIMIT 1)")
		s.raw(" UNION ALL ")
		part("2", " AND token IN (x''")
		for _, t := range b.tokens[k] {
			s.raw(",").token(&t)
		}
		s.raw("))")
	}
	n := int64(0)
	s.asks(func(r *reading) error {
		first := r.int() == 0
		st := b.states[r.string()]
		if st == nil {
			return r.err
		}
		q := &st.queue
		p := readPlace(r)
		if first {
			q.known = max(q.known, p.seq)
			n++
		}
		q.add(p)
		return r.err
	})
	// Whether that was all is known only when all has been read.
	s.raw("SELECT 1").asks(func(r *reading) error {
		if st := b.states[k]; st != nil {
			st.queue.complete = n < limit
			st.queue.more = func() error { return b.more(ctx, st) }
		}
		return nil
	})
}

// more loads the next places of a queue. What was changed already has to be there
// before.
func (b *batch) more(ctx context.Context, st *state) error {
	s := &script{}
	if b.how != looking {
		b.write(s)
	}
	b.readQueue(ctx, s, st.k, max(st.queue.known, 1))
	return b.on.run(ctx, s)
}
