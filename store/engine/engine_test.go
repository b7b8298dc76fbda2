package engine_test

import (
	"cmp"
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/store/storekit"
	"github.com/dibs-go/dibs/store/storetest"
)

// TestConformance: a store that does nothing but load, decide and write, on tables in memory.
// It ends what has expired with the next call, and not at that instant, so it runs in real time.
func TestConformance(t *testing.T) { conform(t, false) }

// TestConformanceSkipping: the same, where the tables tell which processes listen.
func TestConformanceSkipping(t *testing.T) { conform(t, true) }

func conform(t *testing.T, skips bool) {
	t.Parallel() // it mostly waits
	storetest.Run(t, &storetest.Harness{
		New: func(_ testing.TB, turn time.Duration) *storetest.Subject {
			db := &tables{turn: cmp.Or(turn, store.PushedTTL), skips: skips}
			db.wipe()
			return &storetest.Subject{Open: func() store.Store { return db.open() }, Wipe: db.wipe}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew:    "it has one clock",
			storetest.Restart: "nothing outlives the process",
		},
	})
}

// tables are a server's. A row is what Fields point to.
type tables struct {
	turn   time.Duration
	skips  bool          // waiters of processes that do not listen
	slow   time.Duration // what the clock is set to, beside the right time
	unsure time.Duration // how far apart the two bounds of the time are
	mark   int64         // of the fences of rows that were deleted

	mu       sync.Mutex
	servers  []*remote.Server // by the number of their process, less one
	rows     map[string]engine.Row
	leases   map[string][]engine.Lease
	places   map[string][]engine.Place
	progress map[string]map[int64][]byte
	records  map[string][]byte
}

func (db *tables) wipe() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.rows, db.leases, db.places = map[string]engine.Row{}, map[string][]engine.Lease{}, map[string][]engine.Place{}
	db.progress, db.records = map[string]map[int64][]byte{}, map[string][]byte{}
}

// load loads what there is of the keys.
func (db *tables) load(b *engine.Batch) {
	b.Begin()
	for _, k := range b.Keys {
		b.AddRow(k, db.rows[k])
	}
	now := time.Now().Add(db.slow).UnixMicro()
	b.Now(now, now+int64(db.unsure/time.Microsecond), db.mark)
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
			if number := max(p.Process, -p.Process); db.skips && p.Kind == 0 && number > 0 {
				p.Unreachable = !db.servers[number-1].Listeners.Any()
			}
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
	noLease := func(k string, token store.Token, abandoned bool) {
		db.leases[k] = slices.DeleteFunc(db.leases[k], func(l engine.Lease) bool { return l.Token == token && l.Abandoned == abandoned })
	}
	for _, row := range c.NoLeases {
		noLease(row[0].(string), row[1].(store.Token), row[2].(bool))
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
		case engine.ReadSize:
			*s.Size = len(db.records[s.K])
		}
	}
}

// work loads, decides and writes.
func (db *tables) work(_ context.Context, _ remote.Load, b *engine.Batch, do func()) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	for again := true; again; again = b.Short() {
		db.load(b)
		do()
	}
	db.write(b.Changes())
	return nil
}

// keys returns the keys of the range.
func (db *tables) keys(_ context.Context, _ storekit.Part, first, last string, limit int) (keys []string, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for k := range db.rows {
		if k >= first && k <= last {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys[:min(limit, len(keys))], nil
}

// sweep sweeps all keys in one step.
func (db *tables) sweep() remote.Sweep {
	return func(context.Context, int) (int, []string, bool, error) {
		keys, err := db.keys(nil, storekit.All, "", "\xff", math.MaxInt)
		return 0, keys, true, err
	}
}

// open opens a store on the tables, with which nothing is plain.
func (db *tables) open() *remote.Store {
	server := &remote.Server{
		Closer: remote.NewCloser(errors.New("closed")), MaxElements: 512, MaxBytes: 1 << 20, MaxWaiters: 100_000, MaxRecord: 64 << 20,
		PushedTTL: db.turn, PollMin: time.Millisecond, PollMax: 8 * time.Millisecond, Busy: store.ErrBusy,
		Try: func(_ context.Context, call func() error) error { return call() },
		Claim: func(_ context.Context, part []int, _ []string, _ []store.Claim, _ []store.Answer, _ int64) ([]int, error) {
			return part, nil
		},
		Renew: func(_ context.Context, part []int, _ []string, _ []store.Renewal, _ []error) ([]int, error) {
			return part, nil
		},
		Settle: func(_ context.Context, part []int, _ []string, _ []store.Settlement, _ []error) ([]int, error) {
			return part, nil
		},
		Work: db.work, List: db.keys, Sweep: db.sweep,
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.servers = append(db.servers, server)
	number := int64(len(db.servers))
	server.Process = func() int64 {
		if server.Relays.Load() {
			return -number
		}
		return number
	}
	return remote.New(server)
}
