package sqlitestore

import (
	"fmt"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

// loadFirst is how many places of a queue are loaded at first, because a row costs
// microseconds, and most decisions need one. That one is in front is known by the next.
const loadFirst = 2

// decide loads the current key, has do decide, which may be called again with more of a long
// queue, and writes the difference. tokens are those whose places do needs. A step that is
// readOnly writes nothing and wakes nobody.
func (tx *transaction) decide(readOnly bool, do func(*engine.State), tokens ...store.Token) {
	k := string(tx.k)
	b := engine.NewBatch(engine.Tokens{k: tokens}, readOnly, 0)
	b.NextFence, b.Limit = tx.nextFence, loadFirst
	for again := tx.err == nil; again; again = tx.err == nil && b.Short() {
		tx.load(b, k)
		if tx.err == nil {
			do(b.State(k))
		}
	}
	if tx.err == nil {
		tx.write(b, k)
	}
}

// load loads what there is of a key.
func (tx *transaction) load(b *engine.Batch, k string) {
	b.Begin()
	var w engine.Row
	tx.get("idle", func(row *lite.Stmt) { w.IdleSince = row.Int(0) }, tx.k)
	tx.get("record", func(row *lite.Stmt) {
		w.Record.Ends = row.Int(0) >> recordShift
		scan(row, 1, &w.Record.Token, &w.Record.Written, &w.Record.Fingerprint)
	}, tx.k)
	b.AddRow(k, w)
	b.Now(tx.now, tx.now, 1)
	leased := false
	for row := range tx.rows("leases", tx.k) {
		var l engine.Lease
		scan(row, 0, l.Fields()...)
		b.AddLease(k, l)
		leased = true
	}
	if leased {
		for row := range tx.rows("saved", tx.k) {
			b.AddSaved(k, row.Int(0))
		}
	}
	tx.loadQueue(b, k)
	tx.idleSince = w.IdleSince
}

// loadQueue loads the places in front, and if these are not all, the last one and those of the
// tokens.
func (tx *transaction) loadQueue(b *engine.Batch, k string) {
	var loaded, first, last int64
	add := func(name string, front bool, args ...any) {
		for row := range tx.rows(name, args...) {
			var p engine.Place
			scan(row, 0, p.Fields()...)
			b.AddPlace(k, front, p)
			if loaded++; loaded == 1 {
				first = p.Seq
			}
			last = p.Seq
		}
	}
	if add("places", true, tx.k, b.Limit); loaded < b.Limit {
		return
	}
	if add("lastPlace", false, tx.k); last-first >= int64(tx.s.opt.MaxWaiters) {
		tx.get("countNumbers", func(row *lite.Stmt) { b.Numbers(k, row.Int(0)) }, tx.k, tx.now)
	}
	for _, t := range b.Wants[k] {
		if !t.IsZero() {
			add("placeOf", false, tx.k, t[:])
		}
	}
}

// write writes what was decided on a key.
func (tx *transaction) write(b *engine.Batch, k string) {
	c := b.Changes()
	for _, row := range c.NoLeases {
		tx.change("deleteLease", args(row)...)
	}
	for _, row := range c.Leases {
		tx.change("saveLease", args(row)...)
	}
	for _, row := range c.NoNumbers {
		tx.change("deleteNumber", args(row)...)
	}
	for _, row := range c.NoPlaces {
		tx.change("deletePlace", args(row)...)
	}
	for _, row := range c.Places {
		tx.change("savePlace", args(row)...)
	}
	w := b.State(k).Row()
	for i := range c.Steps {
		tx.step(&c.Steps[i], &w.Record)
	}
	switch {
	case len(c.Rows) == 0 || w.IdleSince == tx.idleSince:
	case w.IdleSince == 0:
		tx.change("deleteIdle", tx.k)
	default:
		tx.change("saveIdle", tx.k, w.IdleSince)
	}
	for _, w := range b.WakeUps() {
		tx.wake(w.Token)
	}
}

// step writes or reads data.
func (tx *transaction) step(s *engine.Step, r *engine.Record) {
	read := func(row *lite.Stmt) { *s.To = row.Copy(0) }
	switch s.Does {
	case engine.WriteRecord:
		tx.saveRecord(r, s.Data)
	case engine.EraseRecord:
		tx.change("deleteRecord", tx.k)
	case engine.WriteProgress:
		tx.change("saveProgress", tx.k, s.Fence, s.Data)
	case engine.DropProgress:
		tx.change("deleteProgress", tx.k, s.Fence)
	case engine.ReadRecord:
		tx.get("data", read, tx.k)
	case engine.ReadProgress:
		tx.get("progress", read, tx.k, s.Fence)
	case engine.ReadSize:
		tx.get("size", func(row *lite.Stmt) { *s.Size = int(row.Int(0)) }, tx.k)
	}
}

// recordShift is how many bits of a record's id are a serial number; the rest is its end.
const recordShift = 10

// saveRecord writes the current key's record.
func (tx *transaction) saveRecord(r *engine.Record, data []byte) {
	if tx.err != nil {
		return
	}
	tx.dirty = true
	tx.err = withID(r, &tx.serial, func(id int64) error {
		return tx.st["saveRecord"].Run(id, tx.k, r.Token[:], r.Written, bytesOf(&r.Fingerprint), data)
	})
}

// withID calls save with unused ids for a record, until one is free.
func withID(r *engine.Record, serial *int64, save func(id int64) error) error {
	for step := int64(1); ; step = min(2*step, 1<<20) {
		// A serial number that overflows makes the record end 1 µs later, because all
		// numbers of this one may be taken.
		*serial += step
		err := save(min(r.Ends, r.Written+longest)<<recordShift + *serial)
		if e := sqliteError(err); e == nil || e.Extended != lite.KeyTaken {
			return err
		}
		// Another record has the id. If the clock stops, many ids in a row are
		// taken, so each step is longer.
	}
}

// scan reads columns, from that one on, into what the fields point to.
func scan(row *lite.Stmt, from int, fields ...any) {
	for i, f := range fields {
		i += from
		switch f := f.(type) {
		case *int64:
			*f = row.Int(i)
		case *bool:
			*f = row.Bool(i)
		case *string:
			*f = string(row.Bytes(i))
		case *store.Token:
			copy(f[:], row.Bytes(i))
		case *store.Fingerprint:
			copy(f[:], row.Bytes(i))
		default:
			panic(fmt.Sprintf("sqlitestore: a column of type %T", f))
		}
	}
}

// args are a row of Changes as arguments of a statement.
func args(row []any) []any {
	all := make([]any, len(row))
	for i, f := range row {
		switch f := f.(type) {
		case *int64:
			all[i] = *f
		case *bool:
			all[i] = *f
		case *string:
			all[i] = *f
		case *store.Token:
			all[i] = f[:]
		case store.Token:
			all[i] = f[:]
		case *store.Fingerprint:
			all[i] = bytesOf(f)
		default:
			all[i] = f
		}
	}
	return all
}

// bytesOf returns a fingerprint as the file stores it: empty for none.
func bytesOf(f *store.Fingerprint) []byte {
	if f.IsZero() {
		return nil
	}
	return f[:]
}
