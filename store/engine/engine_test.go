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

	"github.com/dibs-go/dibs/internal/prove/testkit"
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

// TestWhatBeginsLastsFromTheUpperBound: of a time that is known to lie between two bounds, a
// lease, a place, a record, an abandonment and a Grace last from the upper one, and end by the
// lower one.
func TestWhatBeginsLastsFromTheUpperBound(t *testing.T) {
	const least, most = int64(1_000_000), int64(1_300_000)
	const d = 100 * time.Millisecond
	token := store.NewToken()
	k := engine.KeyOf(store.Key{Name: "k"})
	begin := func(least, most int64, w engine.Row, leases []engine.Lease, places []engine.Place) *engine.Batch {
		b := engine.NewBatch(engine.Tokens{k: {token}}, false, 0)
		b.Begin()
		b.AddRow(k, w)
		b.Now(least, most, 1)
		for _, l := range leases {
			b.AddLease(k, l)
		}
		for _, p := range places {
			b.AddPlace(k, true, p)
		}
		return b
	}
	claim := func(mode store.Mode) *store.Claim {
		return &store.Claim{Key: store.Key{Name: "k"}, Token: token, Mode: mode, TTL: d, PlaceTTL: d, Permits: 1, Weight: 1}
	}
	same := func(what string, got, want int64) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	end := most + int64(d/time.Microsecond)

	b := begin(least, most, engine.Row{}, nil, nil)
	var a store.Answer
	b.State(k).Claim(claim(store.Try), &engine.Terms{}, &a)
	w := b.State(k).Row()
	same("a lease ends", w.Holder.Ends, end)
	same("it was granted", w.Holder.Since, most)
	for _, at := range []int64{end - 1, end} {
		for _, above := range []int64{0, 500_000} {
			b := begin(at, at+above, w, nil, nil)
			if held := b.State(k).Renew(&store.Renewal{Token: token, TTL: d}); held != (at < end) {
				t.Errorf("a lease that ends at %d is renewed between %d and %d: %v", end, at, at+above, held)
			}
			var e store.Entry
			b = begin(at, at+above, w, nil, nil)
			b.State(k).Describe(&e, &store.Query{})
			if live := e.Runs[0].Left > 0; live != (at < end) {
				t.Errorf("between %d and %d the lease has %v left", at, at+above, e.Runs[0].Left)
			}
		}
	}
	b = begin(least, most, w, nil, nil)
	b.State(k).Renew(&store.Renewal{Token: token, TTL: 2 * d})
	same("a renewed lease ends", b.State(k).Row().Holder.Ends, most+int64(2*d/time.Microsecond))
	b = begin(least+1, most+1, w, nil, nil)
	b.State(k).Claim(claim(store.Try), &engine.Terms{}, &a)
	same("the lease of a claim that is sent again ends", b.State(k).Row().Holder.Ends, end+1)
	b = begin(least, most, w, nil, nil)
	b.State(k).Settle(&store.Settlement{Token: token, Outcome: store.Keep, Retention: d})
	same("a record was written", b.State(k).Row().Record.Written, most)
	same("it is kept until", b.State(k).Row().Record.Ends, end)
	b = begin(least, most, w, nil, nil)
	b.State(k).Settle(&store.Settlement{Token: token, Outcome: store.Abandon})
	if all := b.Changes().Leases; len(all) != 1 {
		t.Errorf("an abandoned lease is %v", all)
	} else {
		same("a lease was abandoned", *all[0][6].(*int64), most)
	}

	w.Holder.Token = store.NewToken()
	b = begin(least, most, w, nil, nil)
	b.State(k).Claim(claim(store.Queue), &engine.Terms{MaxWaiters: 1}, &a)
	if all := b.Changes().Places; len(all) != 1 {
		t.Errorf("a waiter's place is %v", all)
	} else {
		same("a place ends", *all[0][4].(*int64), end)
	}
	b = begin(least, most, w, nil, nil)
	b.State(k).Claim(claim(store.Reserve), &engine.Terms{MaxWaiters: 1}, &a)
	if all := b.Changes().Places; len(all) != 1 {
		t.Errorf("a reserved place is %v", all)
	} else {
		same("a place was asked for", *all[0][14].(*int64), most)
	}
	two := []engine.Lease{
		{Token: token, Fence: 1, Ends: least, Permits: 2, Weight: 1},
		{Token: store.NewToken(), Fence: 2, Ends: least + 1, Permits: 2, Weight: 1},
	}
	b = begin(least, most, engine.Row{}, two, nil)
	b.State(k).Advance()
	if n := len(b.Changes().NoLeases); n != 1 {
		t.Errorf("%d leases are over, want the one that ended by the lower bound", n)
	}
	b = begin(least, most, engine.Row{}, nil, []engine.Place{{Seq: 1, Token: store.NewToken(), Kind: 1, Ends: end, Grace: 50_000}})
	b.State(k).Claim(claim(store.Try), &engine.Terms{}, &a)
	same("a key is idle", b.State(k).Row().IdleSince, most)
}

// TestFencesRiseWithAClockSetBack: of grants that are claimed, that are pushed, and of a key whose
// row was deleted. A held answer's fence is as high.
func TestFencesRiseWithAClockSetBack(t *testing.T) {
	db := &tables{turn: store.PushedTTL}
	db.wipe()
	s := db.open()
	k, last := store.Key{Name: "k"}, uint64(0)
	claim := func(token store.Token, mode store.Mode) store.Answer {
		t.Helper()
		answers := make([]store.Answer, 1)
		testkit.Must(t, s.Claim(t.Context(), []store.Claim{{Key: k, Token: token, Mode: mode, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}}, answers))
		testkit.Must(t, answers[0].Err)
		return answers[0]
	}
	rises := func(what string, a store.Answer, state store.State) {
		t.Helper()
		if a.State != state || a.Fence < last || state == store.Granted && a.Fence == last {
			t.Errorf("%s is answered %+v, after the fence %d", what, a, last)
		}
		last = a.Fence
	}
	release := func(token store.Token) {
		t.Helper()
		errs := make([]error, 1)
		testkit.Must(t, s.Settle(t.Context(), []store.Settlement{{Key: k, Token: token, Outcome: store.Release}}, errs))
		testkit.Must(t, errs[0])
	}
	woken := make(chan store.Answer, 10)
	defer s.Notify(func(_ store.Token, a store.Answer) { woken <- a })()
	a, b, c := store.NewToken(), store.NewToken(), store.NewToken()
	rises("the first", claim(a, store.Try), store.Granted)
	release(a)
	db.slow = -time.Hour
	rises("a claim after that", claim(b, store.Try), store.Granted)
	rises("a waiter", claim(c, store.Queue), store.Held)
	release(b)
	rises("the waiter's push", <-woken, store.Granted)
	release(c)
	db.wipe()
	db.mark = int64(last)
	rises("a claim of a key whose row was deleted", claim(a, store.Try), store.Granted)
}

// TestProgressIsNotPushed: a waiter whose grant carries the progress of an abandoned lease is
// woken to ask, because a poll does not read progress.
func TestProgressIsNotPushed(t *testing.T) {
	for _, permits := range []int{1, 2} {
		db := &tables{turn: store.PushedTTL}
		db.wipe()
		s := db.open()
		k, next := store.Key{Name: "k"}, store.NewToken()
		claim := func(token store.Token) store.Answer {
			answers := make([]store.Answer, 1)
			testkit.Must(t, s.Claim(t.Context(), []store.Claim{{Key: k, Token: token, TTL: time.Minute, Permits: permits, Weight: 1}}, answers))
			return answers[0]
		}
		holder, errs := store.NewToken(), make([]error, 1)
		claim(holder)
		testkit.Must(t, s.Renew(t.Context(), []store.Renewal{{Key: k, Token: holder, TTL: time.Minute, Progress: []byte("half")}}, errs))
		testkit.Must(t, errs[0])
		testkit.Must(t, s.Settle(t.Context(), []store.Settlement{{Key: k, Token: holder, Outcome: store.Abandon}}, errs))
		testkit.Must(t, errs[0])
		if a := claim(next); a.State != store.Granted || string(a.Progress) != "half" {
			t.Fatalf("%+v, want a grant with the progress", a)
		}
		name, tokens := engine.KeyOf(k), []store.Token{next}
		b := engine.NewBatch(engine.Tokens{name: tokens}, true, 0)
		var due []engine.WakeUp
		testkit.Must(t, db.work(t.Context(), remote.Polling, b, func() { due = b.State(name).Due(tokens, map[store.Token]int{}) }))
		if len(due) != 1 || due[0].Token != next || due[0].Answer.State != 0 {
			t.Errorf("%d permits: due are %+v, want that the waiter is woken", permits, due)
		}
	}
}

// TestMicros: durations are rounded up, because nothing may end early.
func TestMicros(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Microsecond: 1, time.Microsecond + 1: 2, time.Millisecond: 1000,
		store.AnyAge: 9223372036854776, store.AnyAge - time.Microsecond: 9223372036854775,
	} {
		if got := engine.Micros(d); got != want {
			t.Errorf("Micros(%d) = %d, not %d", d, got, want)
		}
	}
}
