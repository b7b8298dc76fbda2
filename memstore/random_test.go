package memstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
)

// FuzzSchedule compares the store with the model over random schedules, one for each seed.
func FuzzSchedule(f *testing.F) {
	for seed := range uint64(25) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) { schedule(t, seed) })
	})
}

// A walker makes one random schedule.
type walker struct {
	*rand.Rand
	t      *testing.T
	s      *memstore.Store
	keys   []dibs.Key
	models map[dibs.Key]*model
	tokens []dibs.Token
	fences map[dibs.Key]uint64
	grants map[grantee]uint64 // the last fence of each
	prints bool               // whether fingerprints are used
}

type grantee struct {
	key   dibs.Key
	token dibs.Token
}

func schedule(t *testing.T, seed uint64) {
	w := &walker{
		Rand: rand.New(rand.NewPCG(seed, 1)), t: t, s: open(t, &memstore.Options{MaxBytes: room}),
		models: map[dibs.Key]*model{}, fences: map[dibs.Key]uint64{}, grants: map[grantee]uint64{},
	}
	w.prints = w.IntN(2) == 0
	for i := range 1 + w.IntN(2) {
		k := dibs.Key{Namespace: "n", Name: fmt.Sprint("key ", i)}
		w.keys = append(w.keys, k)
		w.models[k] = &model{permits: []int{1, 1, 1, 2, 3, 30}[w.IntN(6)]}
	}
	// Few tokens meet often; many make a long queue.
	for range []int{3, 6, 60}[w.IntN(3)] {
		w.tokens = append(w.tokens, dibs.NewToken())
	}
	for range 400 {
		time.Sleep(w.pause())
		synctest.Wait() // timers of this instant first: what is over is over
		w.step(w.keys[w.IntN(len(w.keys))])
		if t.Failed() {
			return
		}
	}
	w.emptied()
}

// room is how many bytes the store has, more than a schedule needs.
const room = 1 << 16

// emptied checks that the store has counted right what it kept: when it is empty
// again there is room for so much and no more.
func (w *walker) emptied() {
	ctx := w.t.Context()
	for _, k := range w.keys {
		_, err := w.s.Evict(ctx, k, "")
		w.ok(err)
		_, err = w.s.Forget(ctx, k)
		w.ok(err)
	}
	for _, size := range []int{room + 1, room} {
		k := dibs.Key{Name: "large"}
		c := dibs.Claim{Key: k, Token: dibs.NewToken(), TTL: time.Hour, Permits: 1}
		if a := claim(w.t, w.s, c); a.State != dibs.Granted {
			w.t.Fatalf("claiming a new key: %+v", a)
		}
		err := settle(w.t, w.s, dibs.Settlement{
			Key: k, Token: c.Token, Outcome: dibs.Keep, Data: make([]byte, size), Retention: time.Hour,
		})
		if errors.Is(err, dibs.ErrFull) != (size > room) {
			w.t.Errorf("an empty store with room for %d bytes, keeping %d: %v", room, size, err)
		}
		if err != nil {
			w.ok(settle(w.t, w.s, dibs.Settlement{Key: k, Token: c.Token}))
		}
	}
}

// pause is often nothing, mostly short, seldom longer than everything. No two
// ends fall on one instant but by a pause of nothing.
func (w *walker) pause() time.Duration {
	switch w.IntN(100) {
	case 0:
		return time.Duration(w.Int64N(int64(30 * time.Hour)))
	case 1, 2, 3, 4, 5, 6, 7, 8:
		return w.length()
	}
	return time.Duration(w.Int64N(int64(200 * time.Millisecond)))
}

func (w *walker) length() time.Duration {
	return time.Millisecond + time.Duration(w.Int64N(int64(3*time.Second)))
}

func (w *walker) step(k dibs.Key) {
	m, now := w.models[k], time.Now()
	token := w.tokens[w.IntN(len(w.tokens))]
	ctx := w.t.Context()
	switch n := w.IntN(100); {
	case n < 55:
		w.claim(k, m, token, now)
	case n < 65:
		r := dibs.Renewal{Key: k, Token: token, TTL: w.length()}
		if w.IntN(2) == 0 {
			r.Progress = fmt.Append(nil, w.Uint32())
		}
		errs := make([]error, 1)
		w.ok(w.s.Renew(ctx, []dibs.Renewal{r}, errs))
		w.same("renew", errs[0], m.renew(r, now))
	case n < 94:
		x := dibs.Settlement{Key: k, Token: token, Outcome: dibs.Outcome(w.IntN(4))}
		if x.Outcome == dibs.Keep {
			x.Data, x.Retention = fmt.Append(nil, w.Uint32()), w.length()
		}
		errs := make([]error, 1)
		w.ok(w.s.Settle(ctx, []dibs.Settlement{x}, errs))
		w.same(x, errs[0], m.settle(x, now))
	case n < 95:
		id := []string{"", token.ID()}[w.IntN(2)]
		got, err := w.s.Evict(ctx, k, id)
		w.ok(err)
		w.same("evict", got, m.evict(id, now))
	case n < 96:
		got, err := w.s.Forget(ctx, k)
		w.ok(err)
		w.same("forget", got, m.forget(now))
	case n < 98:
		got, err := w.s.Resolve(ctx, k, "", []byte("resolved"), time.Second)
		w.ok(err)
		w.same("resolve", got, m.resolve("", []byte("resolved"), time.Second, now))
	case n < 99:
		_, err := w.s.Prune(ctx, w.IntN(3)) // changes nothing that can be seen
		w.ok(err)
	default:
		w.list(k, m, now)
	}
}

func (w *walker) claim(k dibs.Key, m *model, token dibs.Token, now time.Time) {
	c := dibs.Claim{
		Key: k, Token: token, Mode: []dibs.Mode{dibs.Try, dibs.Try, dibs.Queue, dibs.Queue, dibs.Reserve, dibs.Reserve, dibs.Look}[w.IntN(7)],
		TTL: w.length(), Place: w.length(), Permits: m.permits,
	}
	if c.Mode == dibs.Try && w.IntN(2) == 0 {
		c.Place = 0
	}
	if other := w.tokens[w.IntN(len(w.tokens))]; other != token && (c.Mode == dibs.Try || c.Mode == dibs.Look) && w.IntN(4) > 0 {
		c.Redeems = other
	}
	if (c.Mode == dibs.Reserve || !c.Redeems.IsZero()) && w.IntN(3) > 0 {
		c.Hold = w.length()
	}
	if w.IntN(3) == 0 {
		c.MaxAge = w.length()
	}
	if m.permits == 1 && w.IntN(12) == 0 {
		c.AtMostOnce = true
	}
	if w.prints && w.IntN(3) == 0 {
		c.Fingerprint[0] = byte(1 + w.IntN(2))
	}
	want := m.claim(c, now)
	answers := make([]dibs.Answer, 1)
	w.ok(w.s.Claim(w.t.Context(), []dibs.Claim{c}, answers))
	got := answers[0]
	if got.State == dibs.Granted {
		w.fence(k, token, got.Fence)
	}
	if got.State == dibs.Held && got.Left <= 0 {
		w.t.Errorf("claim: held, with %v left", got.Left)
	}
	if got.Ahead > 0 && got.Ahead >= want.Ahead {
		got.Ahead = want.Ahead // an upper bound
	}
	if got.Left > 0 && got.Left < want.Left && len(m.leases) > 16 {
		got.Left = want.Left // with many in the way it may be less
	}
	got.Fence = 0
	w.same(c, got, want)
}

// fence checks that a fence is either the token's or beyond all before.
func (w *walker) fence(k dibs.Key, t dibs.Token, fence uint64) {
	to := grantee{k, t}
	if w.grants[to] == fence {
		return
	}
	if fence <= w.fences[k] && w.models[k].permits == 1 {
		w.t.Errorf("the fence %d follows %d", fence, w.fences[k])
	}
	w.fences[k] = max(w.fences[k], fence)
	w.grants[to] = fence
}

func (w *walker) list(k dibs.Key, m *model, now time.Time) {
	m.pass(now)
	var entry dibs.Entry
	for e, err := range w.s.List(w.t.Context(), dibs.Query{Name: k.Name}) {
		w.ok(err)
		entry = e
	}
	attempts := len(m.leases)
	if m.gone != nil {
		attempts++
	}
	w.same("waiters", entry.Waiters, len(m.queue))
	w.same("attempts", len(entry.Attempts), attempts)
	w.same("a record", entry.Record != nil, m.record != nil)
}

func (w *walker) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *walker) same(what, got, want any) {
	w.t.Helper()
	gotErr, _ := got.(error)
	wantErr, isErr := want.(error)
	if isErr && errors.Is(gotErr, wantErr) || reflect.DeepEqual(got, want) {
		return
	}
	w.t.Errorf("%T %+v: the store said %+v, the model %+v", what, what, got, want)
}
