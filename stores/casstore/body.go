package casstore

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// body is all that there is of a key. As JSON, a row has its fields that are not zero, under the
// names of their columns.
type body struct {
	Row       row              `json:"row,omitempty"`
	Data      []byte           `json:"data,omitempty"` // of the record
	Leases    []row            `json:"leases,omitempty"`
	Places    []row            `json:"places,omitempty"`
	Progress  map[int64][]byte `json:"progress,omitempty"` // under the fences
	FreeSince int64            `json:"free_since,omitempty"`
	// Nonce makes two bodies differ, because some engines take a digest for the version.
	Nonce string `json:"nonce"`

	row    engine.Row
	leases []engine.Lease
	places []engine.Place // in the order of their numbers, a waiter before the reserved place
}

type row map[string]json.RawMessage

var (
	rowColumns   = strings.Split(engine.RowColumns, ",")
	leaseColumns = strings.Split(engine.LeaseColumns, ",")
	placeColumns = strings.Split(engine.PlaceColumns, ",")
)

// encodeRow returns the fields that are not zero.
func encodeRow(columns []string, fields []any) row {
	r := row{}
	for i, f := range fields {
		if reflect.ValueOf(f).Elem().IsZero() {
			continue
		}
		switch x := f.(type) {
		case *store.Token:
			f = x[:]
		case *store.Fingerprint:
			f = x[:]
		}
		raw, err := json.Marshal(f)
		if err != nil {
			panic(err) // a number, a text, a bool or bytes
		}
		r[columns[i]] = raw
	}
	return r
}

// decode fills the fields in.
func (r row) decode(columns []string, fields []any) error {
	for i, f := range fields {
		raw, ok := r[columns[i]]
		if !ok {
			continue
		}
		var bytes []byte
		to := f
		switch f.(type) {
		case *store.Token, *store.Fingerprint:
			to = &bytes
		}
		err := json.Unmarshal(raw, to)
		switch x := f.(type) {
		case *store.Token:
			copy(x[:], bytes)
		case *store.Fingerprint:
			copy(x[:], bytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// decode reads the body of a key; nil is that of a free key.
func decode(raw []byte) (*body, error) {
	b := &body{}
	if raw == nil {
		return b, nil
	}
	err := json.Unmarshal(raw, b)
	if err == nil {
		err = b.Row.decode(rowColumns, b.row.Fields())
	}
	b.leases, b.places = make([]engine.Lease, len(b.Leases)), make([]engine.Place, len(b.Places))
	for i, r := range b.Leases {
		if err == nil {
			err = r.decode(leaseColumns, b.leases[i].Fields())
		}
	}
	for i, r := range b.Places {
		if err == nil {
			err = r.decode(placeColumns, b.places[i].Fields())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("casstore: an object is not the body of a key: %w", err)
	}
	return b, nil
}

// encode returns the body as it is written.
func (b *body) encode(nonce string) ([]byte, error) {
	b.Row, b.Leases, b.Places, b.Nonce = encodeRow(rowColumns, b.row.Fields()), nil, nil, nonce
	for i := range b.leases {
		b.Leases = append(b.Leases, encodeRow(leaseColumns, b.leases[i].Fields()))
	}
	for i := range b.places {
		b.Places = append(b.Places, encodeRow(placeColumns, b.places[i].Fields()))
	}
	return json.Marshal(b)
}

// load adds what there is of the key to a batch that knows the time.
func (b *body) load(to *engine.Batch, k string) {
	for _, l := range b.leases {
		to.AddLease(k, l)
	}
	for fence := range b.Progress {
		to.AddSaved(k, fence)
	}
	for _, p := range b.places {
		to.AddPlace(k, true, p)
	}
}

// apply makes the changes of the key, and reads what their steps read. It reports whether
// anything changed.
func (b *body) apply(c *engine.Changes, k string) (changed bool) {
	of := func(rows [][]any, do func(fields []any)) {
		for _, r := range rows {
			if r[0] == k {
				do(r[1:])
				changed = true
			}
		}
	}
	of(c.Rows, func(f []any) { fill(b.row.Fields(), f) })
	noLease := func(t store.Token, abandoned bool) {
		b.leases = slices.DeleteFunc(b.leases, func(l engine.Lease) bool { return l.Token == t && l.Abandoned == abandoned })
	}
	of(c.NoLeases, func(f []any) { noLease(f[0].(store.Token), f[1].(bool)) })
	of(c.Leases, func(f []any) {
		var l engine.Lease
		fill(l.Fields(), f)
		noLease(l.Token, l.Abandoned)
		b.leases = append(b.leases, l)
	})
	noPlace := func(is func(*engine.Place) bool) {
		b.places = slices.DeleteFunc(b.places, func(p engine.Place) bool { return is(&p) })
	}
	of(c.NoNumbers, func(f []any) { noPlace(func(p *engine.Place) bool { return p.Seq == f[0] }) })
	of(c.NoPlaces, func(f []any) { noPlace(func(p *engine.Place) bool { return p.Seq == f[0] && p.Token == f[1] }) })
	of(c.Places, func(f []any) {
		var p engine.Place
		fill(p.Fields(), f)
		noPlace(func(q *engine.Place) bool { return q.Seq == p.Seq && q.Token == p.Token })
		i, _ := slices.BinarySearchFunc(b.places, p, func(q, p engine.Place) int {
			if q.Seq < p.Seq || q.Seq == p.Seq && q.Kind <= p.Kind {
				return -1
			}
			return 1
		})
		b.places = slices.Insert(b.places, i, p)
	})
	for i := range c.Steps {
		if c.Steps[i].K == k {
			changed = b.step(&c.Steps[i]) || changed
		}
	}
	return changed
}

// step does one step, and reports whether it changed anything.
func (b *body) step(s *engine.Step) bool {
	switch s.Does {
	case engine.WriteRecord:
		b.Data = s.Data
	case engine.EraseRecord:
		b.Data = nil
	case engine.WriteProgress:
		b.Progress = maps.Clone(b.Progress)
		if b.Progress == nil {
			b.Progress = map[int64][]byte{}
		}
		b.Progress[s.Fence] = s.Data
	case engine.DropProgress:
		delete(b.Progress, s.Fence)
	case engine.ReadRecord:
		*s.To = slices.Clone(b.Data)
	case engine.ReadProgress:
		*s.To = slices.Clone(b.Progress[s.Fence])
	case engine.ReadSize:
		*s.Size = len(b.Data)
	}
	return s.Does < engine.ReadRecord
}

// free reports whether there is nothing of the key but its last fence.
func (b *body) free() bool {
	return b.row.Holder.Token.IsZero() && b.row.Record.Ends == 0 && len(b.leases)+len(b.places)+len(b.Progress) == 0
}

// ends returns when the last lease or place of the key expires; 0 if there is none.
func (b *body) ends() (last int64) {
	last = b.row.Holder.Ends
	for i := range b.leases {
		if !b.leases[i].Abandoned {
			last = max(last, b.leases[i].Ends)
		}
	}
	for i := range b.places {
		last = max(last, b.places[i].Ends)
	}
	return last
}

// fill copies what fields point to.
func fill(to, from []any) {
	for i := range to {
		reflect.ValueOf(to[i]).Elem().Set(reflect.ValueOf(from[i]).Elem())
	}
}
