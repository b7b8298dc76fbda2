package mysqlstore

import (
	"slices"
	"strings"

	"github.com/dibs-go/dibs"
)

// writes are what else there is to write for a key, and to read of it on the way, in
// the order in which it happened.
type writes struct {
	steps    []step
	answered bool // also the places that were not loaded have their answer
}

// step adds a statement to a script.
type step struct {
	add   func(s *script, n namer, k string)
	reads bool // it only reads
}

func (w *writes) step(add func(s *script, n namer, k string)) {
	w.steps = append(w.steps, step{add: add})
}

func (w *writes) read(add func(s *script, n namer, k string)) {
	w.steps = append(w.steps, step{add: add, reads: true})
}

func (w *writes) record(ends int64, data []byte) {
	data = some(data)
	w.step(func(s *script, n namer, k string) {
		s.raw(n.sql("INSERT INTO @record (k,ends,data) VALUES (")).bytes(k).raw(",").int(ends).raw(",").data(data)
		s.raw(") ON DUPLICATE KEY UPDATE ends=VALUES(ends),data=VALUES(data)").done()
	})
}

func (w *writes) eraseRecord() {
	w.step(func(s *script, n namer, k string) { s.raw(n.sql("DELETE FROM @record WHERE k=")).bytes(k).done() })
}

// readRecord reads the record's data.
func (w *writes) readRecord(to *[]byte) {
	w.read(func(s *script, n namer, k string) {
		s.raw(n.sql("SELECT data FROM @record WHERE k=")).bytes(k).asks(func(r *reading) error {
			*to = slices.Clone(r.bytes())
			return r.err
		})
	})
}

func (w *writes) progress(t dibs.Token, data []byte) {
	w.step(func(s *script, n namer, k string) {
		s.raw(n.sql("INSERT INTO @progress (k,token,data) VALUES (")).bytes(k).raw(",").token(&t).raw(",").data(data)
		s.raw(") ON DUPLICATE KEY UPDATE data=VALUES(data)").done()
	})
}

func (w *writes) dropProgress(t dibs.Token) {
	w.step(func(s *script, n namer, k string) {
		s.raw(n.sql("DELETE FROM @progress WHERE k=")).bytes(k).raw(" AND token=").token(&t).done()
	})
}

func (w *writes) passProgressOn(t dibs.Token) {
	w.step(func(s *script, n namer, k string) {
		s.raw(n.sql("UPDATE @progress SET token=x'' WHERE k=")).bytes(k).raw(" AND token=").token(&t).done()
	})
}

// readProgress reads what those who were abandoned saved.
func (w *writes) readProgress(to *[]byte) {
	w.read(func(s *script, n namer, k string) {
		s.raw(n.sql("SELECT data FROM @progress WHERE k=")).bytes(k).raw(" AND token=x''").asks(func(r *reading) error {
			*to = slices.Clone(r.bytes())
			return r.err
		})
	})
}

// write writes what is different from what was loaded, and takes note that it is
// written.
func (b *batch) write(s *script) {
	if b.how != looking {
		b.writeRows(s)
		b.writeHolders(s)
		b.writeQueues(s)
	}
	for _, k := range b.keys {
		st := b.states[k]
		for _, step := range st.writes.steps {
			if b.how != looking || step.reads {
				step.add(s, b.names, k)
			}
		}
		st.writes = writes{}
	}
}

// updates is the end of an INSERT that may find its row there already.
func updates(columns string) string {
	var all []string
	for c := range strings.SplitSeq(columns, ",") {
		if c != "k" {
			all = append(all, c+"=VALUES("+c+")")
		}
	}
	return " ON DUPLICATE KEY UPDATE " + strings.Join(all, ",")
}

var updatesKey, updatesHolder, updatesWaiter = updates(keyColumns), updates(holderColumns), updates(waiterColumns)

func (b *batch) writeRows(s *script) {
	n := 0
	for _, k := range b.keys {
		st := b.states[k]
		now := st.row()
		if !st.was.there || now == st.was {
			continue
		}
		st.was = now
		if n++; n == 1 {
			s.raw(b.names.sql("INSERT INTO @key (" + keyColumns + ") VALUES (")).bytes(k)
		} else {
			s.raw(",(").bytes(k)
		}
		for _, v := range []int64{now.fence, now.permits} {
			s.raw(",").int(v)
		}
		for _, v := range []bool{now.busy, now.queued, now.saved} {
			s.raw(",").bool(v)
		}
		h, l, r := &now.holder, &now.lost, &now.record
		s.raw(",").token(&h.token).raw(",").int(h.attempt).raw(",").int(h.since).raw(",").int(h.ends)
		s.raw(",").bool(h.offered).raw(",").bool(h.once).raw(",").bool(h.inherits).raw(",").int(h.seq)
		s.raw(",").fingerprint(&h.fingerprint).raw(",").bytes(h.owner)
		s.raw(",").int(now.abandoned)
		s.raw(",").token(&l.token).raw(",").int(l.fence).raw(",").int(l.attempt).raw(",").int(l.since).raw(",").int(l.ends)
		s.raw(",").bool(l.once).raw(",").bool(l.inherits).raw(",").fingerprint(&l.fingerprint).raw(",").bytes(l.owner)
		s.raw(",").token(&r.token).raw(",").int(r.written).raw(",").int(r.ends).raw(",").fingerprint(&r.fingerprint).raw(")")
	}
	if n > 0 {
		s.raw(updatesKey).done()
	}
}

func (b *batch) writeHolders(s *script) {
	var gone, there []func()
	for _, k := range b.keys {
		st := b.states[k]
		now := st.holders
		if st.permits == 1 {
			now = nil // in the key's row
		}
		left := map[dibs.Token]bool{}
		for _, l := range now {
			left[l.token] = true
		}
		for t := range st.others {
			if !left[t] {
				delete(st.others, t)
				gone = append(gone, func() {
					s.raw(b.names.sql("DELETE FROM @holder WHERE k=")).bytes(k).raw(" AND token=").token(&t).done()
				})
			}
		}
		for _, l := range now {
			if st.others[l.token] == l {
				continue
			}
			st.others[l.token] = l
			there = append(there, func() {
				s.raw("(").bytes(k).raw(",").token(&l.token).raw(",").int(l.fence).raw(",").int(l.attempt).raw(",").int(l.since)
				s.raw(",").int(l.ends).raw(",").bool(l.offered).raw(",").bool(l.once).raw(",").bool(l.inherits).raw(",").int(l.seq)
				s.raw(",").fingerprint(&l.fingerprint).raw(",").bytes(l.owner).raw(")")
			})
		}
	}
	for _, f := range gone {
		f()
	}
	insert(s, b.names.sql("INSERT INTO @holder ("+holderColumns+") VALUES "), there, updatesHolder)
}

func (b *batch) writeQueues(s *script) {
	var gone, there []func()
	for _, k := range b.keys {
		q := &b.states[k].queue
		if q.was == nil {
			q.was = map[int64]place{}
		}
		now := map[int64]bool{}
		for _, p := range q.places {
			now[p.seq] = true
			if was, ok := q.was[p.seq]; ok && was == *p {
				continue
			}
			p := *p
			q.was[p.seq] = p
			there = append(there, func() {
				s.raw("(").bytes(k).raw(",").int(p.seq).raw(",").token(&p.token).raw(",").int(p.kind).raw(",").int(p.ends)
				s.raw(",").int(p.lasts).raw(",").bool(p.once).raw(",").int(p.maxAge).raw(",").bool(p.tells)
				s.raw(",").fingerprint(&p.fingerprint).raw(",").bytes(p.owner)
				s.raw(",").int(p.hold).raw(",").bool(p.pressed).raw(")")
			})
		}
		var out []int64
		for seq := range q.was {
			if !now[seq] {
				out = append(out, seq)
				delete(q.was, seq)
			}
		}
		if len(out) > 0 {
			gone = append(gone, func() {
				s.raw(b.names.sql("DELETE FROM @waiter WHERE k=")).bytes(k).raw(" AND seq IN (")
				for i, seq := range out {
					if i > 0 {
						s.raw(",")
					}
					s.int(seq)
				}
				s.raw(")").done()
			})
		}
		if b.states[k].writes.answered {
			gone = append(gone, func() {
				s.raw(b.names.sql("DELETE FROM @waiter WHERE k=")).bytes(k).raw(" AND kind<3 AND max_age>0").done()
			})
		}
	}
	for _, f := range gone {
		f()
	}
	insert(s, b.names.sql("INSERT INTO @waiter ("+waiterColumns+") VALUES "), there, updatesWaiter)
}

// insert writes rows with one statement.
func insert(s *script, head string, rows []func(), tail string) {
	for i, row := range rows {
		if i == 0 {
			s.raw(head)
		} else {
			s.raw(",")
		}
		row()
	}
	if len(rows) > 0 {
		s.raw(tail).done()
	}
}
