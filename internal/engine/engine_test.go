package engine_test

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
	"github.com/dibs-go/dibs/storetest"
)

// TestConformance: a store that does nothing but load, decide and write, on tables in memory.
// It sees what is over when somebody asks, and not at that instant: so it runs in real time.
func TestConformance(t *testing.T) {
	storetest.Run(t, &storetest.Harness{
		New: func(_ testing.TB, turn time.Duration) *storetest.Backend {
			db := &tables{turn: cmp.Or(turn, dibs.PushedTTL)}
			db.wipe()
			return &storetest.Backend{Open: func() dibs.Store { return store{db} }, Wipe: db.wipe}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew:      "it has one clock",
			storetest.Restart:   "nothing outlives the process",
			storetest.Inspector: "the stores have it",
			storetest.Pruner:    "the stores have it",
		},
	})
}

// tables are a server's. A row is what Fields point to.
type tables struct {
	turn time.Duration

	mu        sync.Mutex
	rows      map[string]engine.Row
	leases    map[string][]engine.Lease
	places    map[string][]engine.Place
	progress  map[string]map[int64][]byte
	records   map[string][]byte
	listeners []*func(dibs.Token, dibs.Answer)
}

func (db *tables) wipe() {
	db.rows, db.leases, db.places = map[string]engine.Row{}, map[string][]engine.Lease{}, map[string][]engine.Place{}
	db.progress, db.records = map[string]map[int64][]byte{}, map[string][]byte{}
}

// load loads what there is of the keys.
func (db *tables) load(b *engine.Batch) {
	b.Begin()
	for _, k := range b.Keys {
		b.AddRow(k, db.rows[k])
	}
	b.Now(time.Now().UnixMicro(), 0)
	for _, k := range b.Keys {
		slices.SortFunc(db.leases[k], func(x, y engine.Lease) int { return cmp.Compare(x.Ends, y.Ends) })
		for _, l := range db.leases[k] {
			b.AddLease(k, l)
		}
		for fence := range db.progress[k] {
			b.AddSaved(k, fence)
		}
		all := db.places[k]
		slices.SortFunc(all, func(x, y engine.Place) int { return cmp.Compare(x.Seq, y.Seq) })
		for n, p := range all {
			if first := n < int(b.Limit); first || n == len(all)-1 || slices.Contains(b.Wants[k], p.Token) {
				b.AddPlace(k, first, p)
			}
		}
	}
}

// fill copies what fields point to.
func fill(to, from []any) {
	for i := range to {
		reflect.ValueOf(to[i]).Elem().Set(reflect.ValueOf(from[i]).Elem())
	}
}

// write writes the changes.
func (db *tables) write(c *engine.Changes) {
	for _, row := range c.Rows {
		var w engine.Row
		fill(w.Fields(), row[1:])
		db.rows[row[0].(string)] = w
	}
	noLease := func(k string, token dibs.Token, abandoned bool) {
		db.leases[k] = slices.DeleteFunc(db.leases[k], func(l engine.Lease) bool { return l.Token == token && l.Abandoned == abandoned })
	}
	for _, row := range c.NoLeases {
		noLease(row[0].(string), row[1].(dibs.Token), row[2].(bool))
	}
	for _, row := range c.Leases {
		var l engine.Lease
		fill(l.Fields(), row[1:])
		k := row[0].(string)
		noLease(k, l.Token, l.Abandoned)
		db.leases[k] = append(db.leases[k], l)
	}
	noPlace := func(k string, is func(engine.Place) bool) { db.places[k] = slices.DeleteFunc(db.places[k], is) }
	for _, row := range c.NoNumbers {
		noPlace(row[0].(string), func(p engine.Place) bool { return p.Seq == row[1] })
	}
	for _, row := range c.NoPlaces {
		noPlace(row[0].(string), func(p engine.Place) bool { return p.Seq == row[1] && p.Token == row[2] })
	}
	for _, row := range c.Places {
		var p engine.Place
		fill(p.Fields(), row[1:])
		k := row[0].(string)
		noPlace(k, func(other engine.Place) bool { return other.Seq == p.Seq && other.Token == p.Token })
		db.places[k] = append(db.places[k], p)
	}
	for _, s := range c.Steps {
		switch s.Does {
		case engine.WriteRecord:
			db.records[s.K] = slices.Clone(s.Data)
		case engine.EraseRecord:
			delete(db.records, s.K)
		case engine.WriteProgress:
			if db.progress[s.K] == nil {
				db.progress[s.K] = map[int64][]byte{}
			}
			db.progress[s.K][s.Fence] = slices.Clone(s.Data)
		case engine.DropProgress:
			delete(db.progress[s.K], s.Fence)
		case engine.ReadRecord:
			*s.To = slices.Clone(db.records[s.K])
		case engine.ReadProgress:
			*s.To = slices.Clone(db.progress[s.K][s.Fence])
		}
	}
}

// work does something with one key.
func (db *tables) work(key dibs.Key, looks bool, tokens []dibs.Token, do func(*engine.State)) {
	k := engine.KeyOf(key)
	db.mu.Lock()
	b := engine.NewBatch(engine.Tokens{k: tokens}, looks, engine.Micros(db.turn))
	for again := true; again; again = b.Short() {
		db.load(b)
		do(b.State(k))
	}
	db.write(b.Changes())
	listeners := db.listeners
	db.mu.Unlock()
	for _, t := range b.Turns() {
		for _, wake := range listeners {
			(*wake)(t.Token, t.Answer)
		}
	}
}

// store is a dibs.Store on them.
type store struct{ db *tables }

func (s store) Claim(_ context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	s.db.mu.Lock()
	o := &engine.Terms{MaxWaiters: 100_000, Process: int64(min(len(s.db.listeners), 1))}
	s.db.mu.Unlock()
	for i := range claims {
		c := &claims[i]
		if answers[i].Err = c.Validate(); answers[i].Err != nil {
			continue
		}
		s.db.work(c.Key, c.Mode == dibs.Look, []dibs.Token{c.Token, c.From}, func(st *engine.State) {
			answers[i] = dibs.Answer{}
			st.Claim(c, o, &answers[i])
		})
	}
	return nil
}

// lose does something with one element, which has lost what it is about if that is false.
func (s store) lose(key dibs.Key, token dibs.Token, wrong error, do func(*engine.State) bool) (err error) {
	if wrong != nil {
		return wrong
	}
	s.db.work(key, false, []dibs.Token{token}, func(st *engine.State) {
		if err = nil; !do(st) {
			err = dibs.ErrLost
		}
	})
	return err
}

func (s store) Renew(_ context.Context, renewals []dibs.Renewal, errs []error) error {
	for i := range renewals {
		r := &renewals[i]
		errs[i] = s.lose(r.Key, r.Token, r.Validate(), func(st *engine.State) bool { return st.Renew(r) })
	}
	return nil
}

func (s store) Settle(_ context.Context, settlements []dibs.Settlement, errs []error) error {
	for i := range settlements {
		x := &settlements[i]
		errs[i] = s.lose(x.Key, x.Token, x.Validate(), func(st *engine.State) bool { return st.Settle(x) })
	}
	return nil
}

func (s store) Notify(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.db.listeners = append(slices.Clone(s.db.listeners), &wake)
	return func() {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		s.db.listeners = slices.DeleteFunc(slices.Clone(s.db.listeners), func(other *func(dibs.Token, dibs.Answer)) bool { return other == &wake })
	}
}
