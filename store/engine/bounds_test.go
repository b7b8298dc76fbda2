package engine_test

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

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
