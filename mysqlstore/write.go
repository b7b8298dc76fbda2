package mysqlstore

import (
	"strings"

	"github.com/dibs-go/dibs"
)

// writes are what else there is to write for a key, and to read of it on the way, in
// the order in which it happened.
type writes []step

// step adds a statement to a script.
type step struct {
	add   func(s *script, k string)
	reads bool // it only reads
}

func (w *writes) step(add func(s *script, k string)) { *w = append(*w, step{add: add}) }

func (w *writes) read(add func(s *script, k string)) { *w = append(*w, step{add, true}) }

func (w *writes) record(data []byte) {
	w.step(func(s *script, k string) {
		s.raw("INSERT INTO @record (k,data) VALUES ").row(k, data)
		s.raw(" ON DUPLICATE KEY UPDATE data=VALUES(data)").done()
	})
}

func (w *writes) eraseRecord() {
	w.step(func(s *script, k string) { s.raw("DELETE FROM @record WHERE k=").value(k).done() })
}

func (w *writes) progress(fence int64, data []byte) {
	w.step(func(s *script, k string) {
		s.raw("INSERT INTO @progress (k,fence,data) VALUES ").row(k, fence, data)
		s.raw(" ON DUPLICATE KEY UPDATE data=VALUES(data)").done()
	})
}

func (w *writes) dropProgress(fence int64) {
	w.step(func(s *script, k string) {
		s.raw("DELETE FROM @progress WHERE k=").value(k).raw(" AND fence=").value(fence).done()
	})
}

func (w *writes) readRecord(to *[]byte) {
	w.read(func(s *script, k string) {
		s.raw("SELECT data FROM @record WHERE k=").value(k).asks(func(r *reading) { r.scan(to) })
	})
}

func (w *writes) readProgress(fence int64, to *[]byte) {
	w.read(func(s *script, k string) {
		s.raw("SELECT data FROM @progress WHERE k=").value(k).raw(" AND fence=").value(fence).asks(func(r *reading) { r.scan(to) })
	})
}

// recordInfo reads what there is to know of the record's data, and all of it if that is
// asked for.
func (w *writes) recordInfo(to *dibs.RecordInfo, all bool) {
	what := "NULL"
	if all {
		what = "data"
	}
	w.read(func(s *script, k string) {
		s.raw("SELECT LENGTH(data)," + what + " FROM @record WHERE k=").value(k).asks(func(r *reading) {
			var n int64
			r.scan(&n, &to.Data)
			to.Bytes = int(n)
		})
	})
}

// row writes the values of one row.
func (s *script) row(values ...any) *script { return list(s.raw("("), values...).raw(")") }

// upsert writes rows, each of which may be there already.
func upsert(s *script, table, columns string, rows [][]any) {
	if len(rows) == 0 {
		return
	}
	s.raw("INSERT INTO @" + table + " (" + columns + ") VALUES ")
	for i, row := range rows {
		if i > 0 {
			s.raw(",")
		}
		s.row(row...)
	}
	s.raw(" ON DUPLICATE KEY UPDATE ")
	for i, c := range strings.Split(columns, ",") {
		if i > 0 {
			s.raw(",")
		}
		s.raw(c + "=VALUES(" + c + ")")
	}
	s.done()
}

// write writes what is different from what was loaded.
func (b *batch) write(s *script) {
	if b.how != looking {
		b.writeRows(s)
		b.writeHolders(s)
		b.writeQueues(s)
	}
	for _, k := range b.keys {
		for _, step := range b.states[k].writes {
			if b.how != looking || step.reads {
				step.add(s, k)
			}
		}
	}
}

func (b *batch) writeRows(s *script) {
	var rows [][]any
	for _, k := range b.keys {
		st := b.states[k]
		st.tidy()
		if w := st.row(); st.was.there && w != st.was {
			rows = append(rows, append([]any{k}, w.columns()...))
		}
	}
	upsert(s, "key", keyColumns, rows)
}

func (b *batch) writeHolders(s *script) {
	var rows [][]any
	for _, k := range b.keys {
		st := b.states[k]
		all := st.holders
		if st.lost != nil {
			all = append(all[:len(all):len(all)], *st.lost)
		}
		left := map[holderID]bool{}
		for _, l := range all {
			if l.permits == 1 && !l.abandoned {
				continue // in the key's row
			}
			id := holderID{l.token, l.abandoned}
			if left[id] = true; st.others[id] != l {
				rows = append(rows, append([]any{k}, l.columns()...))
			}
		}
		for id := range st.others {
			if !left[id] {
				s.raw("DELETE FROM @holder WHERE k=").value(k).raw(" AND token=").value(id.token).raw(" AND abandoned=").value(id.abandoned).done()
			}
		}
	}
	upsert(s, "holder", holderColumns, rows)
}

func (b *batch) writeQueues(s *script) {
	var rows [][]any
	for _, k := range b.keys {
		q := &b.states[k].queue
		for _, seq := range q.gone {
			s.raw("DELETE FROM @waiter WHERE k=").value(k).raw(" AND seq=").value(seq).done()
		}
		left := map[placeID]bool{}
		for _, p := range q.places {
			id := placeID{p.seq, p.token}
			if left[id] = true; q.was[id] != *p {
				rows = append(rows, append([]any{k}, p.columns()...))
			}
		}
		for id := range q.was {
			if !left[id] {
				s.raw("DELETE FROM @waiter WHERE k=").value(k).raw(" AND seq=").value(id.seq).raw(" AND token=").value(id.token).done()
			}
		}
	}
	upsert(s, "waiter", waiterColumns, rows)
}
