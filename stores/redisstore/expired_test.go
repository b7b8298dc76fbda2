package redisstore

import (
	"slices"
	"testing"
	"time"

	"github.com/dibs-go/dibs/store"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestExpiredTogether: of leases that nobody looked at since they expired, the one that ended last
// is the last attempt, for the next claim and in a listing. The order of their grants does not
// matter.
func TestExpiredTogether(t *testing.T) {
	t.Parallel()
	for _, lastFirst := range []bool{true, false} {
		s := open(t, ownURL(), nil)
		two := func(c *store.Claim) { c.Permits = 2 }
		early, late := lock("k", two), lock("k", two)
		both := []store.Claim{early, late}
		if lastFirst {
			slices.Reverse(both)
		}
		for _, c := range both {
			mustGrant(t, s, c)
		}
		// One script each: nothing is looked at when the first has expired.
		for c, ttl := range map[*store.Claim]time.Duration{&early: time.Second, &late: 1100 * time.Millisecond} {
			testkit.Must(t, renewal(t.Context(), s, store.Renewal{Key: c.Key, Token: c.Token, TTL: ttl, Progress: c.Token[:]}))
		}
		var e store.Entry
		testkit.Eventually(t, "both have expired", func() bool { // a listing only reads
			for got, err := range s.List(t.Context(), store.Query{Namespace: &early.Key.Namespace, Name: "k"}) {
				testkit.Must(t, err)
				e = got
			}
			return e.Condition == store.ConditionAbandoned
		})
		if len(e.Runs) != 1 || e.Runs[0].ID != late.Token.ID() || e.Runs[0].Attempt != 2 {
			t.Errorf("listed are %+v; want attempt 2 of %s", e.Runs, late.Token.ID())
		}
		if a := mustGrant(t, s, lock("k", two)); a.Attempt != 3 || string(a.Progress) != string(late.Token[:]) {
			t.Errorf("the next claim was answered %+v; want the progress of the one that ended last", a)
		}
	}
}

// TestListMissesNothing: brief leases, abandoned keys and places that block are listed by queries
// that select them, and not only what is under the listed names.
func TestListMissesNothing(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), nil)
	mustGrant(t, s, lock("brief", brief))
	abandoned := lock("abandoned", brief)
	mustGrant(t, s, abandoned)
	mustSettle(t, s, abandoned, store.Abandon)
	blocker := lock("blocked", brief)
	mustGrant(t, s, blocker)
	mustWait(t, s, lock("blocked", brief, func(c *store.Claim) { c.Mode, c.Grace = store.Reserve, time.Hour }))
	mustSettle(t, s, blocker, store.Release)
	if a, err := claim(t, s, lock("blocked", brief)); err != nil || a.State != store.Held {
		t.Fatalf("a claim behind the place was answered %+v, %v", a, err)
	}
	for _, test := range []struct {
		q    store.Query
		want []string
	}{
		{store.Query{}, []string{"abandoned", "blocked", "brief"}},
		{store.Query{Conditions: []store.Condition{store.ConditionHeld}}, []string{"brief"}},
		{store.Query{Conditions: []store.Condition{store.ConditionHeld}, HeldFor: time.Microsecond}, []string{"brief"}},
		{store.Query{Conditions: []store.Condition{store.ConditionAbandoned}, HeldFor: longHeld}, []string{"abandoned"}},
		{store.Query{Conditions: []store.Condition{store.ConditionHeld, store.ConditionAbandoned}, HeldFor: longHeld}, []string{"abandoned"}},
		{store.Query{Conditions: []store.Condition{store.ConditionWaiting}}, []string{"blocked"}},
		{store.Query{Conditions: []store.Condition{store.ConditionWaiting, store.ConditionHeld}, HeldFor: longHeld, Places: true}, []string{"blocked"}},
	} {
		var got []string
		for e, err := range s.List(t.Context(), test.q) {
			testkit.Must(t, err)
			got = append(got, e.Key.Name)
			if e.Key.Name == "blocked" && (e.Reserved != 1 || test.q.Places && (len(e.Places) != 1 || e.Places[0].Blocks <= 0)) {
				t.Errorf("%+v lists %+v", test.q, e)
			}
		}
		if slices.Sort(got); !slices.Equal(got, test.want) {
			t.Errorf("%+v lists %q; want %q", test.q, got, test.want)
		}
	}
}
