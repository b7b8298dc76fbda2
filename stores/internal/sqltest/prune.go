package sqltest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// While a process sweeps all keys, however long that takes, no other process begins a sweep.
func (k *Kind) oneSweeps(t *testing.T) {
	name := testkit.Own()
	s, other := k.Open(t, k.Server.URL(), name, none), k.Open(t, k.Server.URL(), name, none)
	may := func(s Store, want bool) {
		t.Helper()
		if got, err := k.TakeSweep(t.Context(), s); err != nil || got != want {
			t.Errorf("whether it is its turn: %v, %v; want %v", got, err, want)
		}
	}
	may(s, true)
	later := k.Names(s, k.Later)
	k.Server.Query(later)
	testkit.Must(t, k.KeepSweep(t.Context(), s))
	may(other, false)
	k.Server.Query(later)
	may(other, true)
}

// What has expired is deleted in the background, and so are keys that are not in use.
func (k *Kind) prunesByItself(t *testing.T) {
	s := k.Open(t, k.Server.URL(), testkit.Own(), 10*time.Millisecond)
	const n = 1000
	claims, answers := make([]store.Claim, n), make([]store.Answer, n)
	settlements, errs := make([]store.Settlement, n), make([]error, n)
	for i := range claims {
		key, token := store.Key{Name: fmt.Sprint(i)}, store.NewToken()
		claims[i] = store.Claim{Key: key, Token: token, TTL: time.Hour, Permits: 1, Weight: 1}
		settlements[i] = store.Settlement{Key: key, Token: token, Outcome: store.Keep, Data: []byte("answer"), Retention: time.Millisecond}
		if i%2 == 0 {
			settlements[i].Outcome = store.Release
		}
	}
	testkit.Must(t, s.Claim(t.Context(), claims, answers))
	if err := s.Settle(t.Context(), settlements, errs); err != nil || errors.Join(errs...) != nil {
		t.Fatal(err, errors.Join(errs...))
	}
	gone := func(what string) bool {
		return k.Server.Query(k.Names(s, "SELECT COUNT(*) FROM "+what))[0][0] == "0"
	}
	for _, records := range k.Records {
		testkit.Eventually(t, "the records are gone", func() bool {
			k.Server.Query(k.Names(s, k.SweepSoon))
			return gone(records)
		})
	}
	testkit.Eventually(t, "the keys are gone", func() bool {
		k.Server.Query(k.Names(s, k.SweepSoon))
		return gone("@key")
	})
}

// A process that makes no call deletes what a process left that has ended: leases, a place and
// records that have expired.
func (k *Kind) sweepsUnasked(t *testing.T) {
	name := testkit.Own()
	left := k.Open(t, k.Server.URL(), name, none)
	key := func(i int) store.Key { return store.Key{Name: fmt.Sprint(i)} }
	token := store.NewToken()
	Ask(t, left, store.Claim{Key: key(1), Token: token, TTL: time.Millisecond})
	Ask(t, left, store.Claim{Key: key(2), Token: token, Mode: store.Reserve, PlaceTTL: time.Millisecond})
	Ask(t, left, store.Claim{Key: key(3), Token: token, TTL: time.Hour})
	testkit.Must(t, Settle(t, left, store.Settlement{Key: key(3), Token: token, Outcome: store.Keep, Data: []byte("x"), Retention: time.Millisecond}))
	testkit.Must(t, left.Close())
	s := k.Open(t, k.Server.URL(), name, 10*time.Millisecond)
	// The lease that expired is remembered as an abandoned one.
	for what, want := range map[string]string{"@waiter": "0", "@holder": "1", "@key WHERE rec_ends > 0": "0", "@key WHERE NOT token = ''": "0"} {
		testkit.Eventually(t, what+" is swept", func() bool {
			k.Server.Query(k.Names(s, k.SweepSoon))
			return k.Server.Query(k.Names(s, "SELECT COUNT(*) FROM "+what))[0][0] == want
		})
	}
}

// The fences of a key rise even if the clock was set back and the key's row was deleted.
func (k *Kind) fencesOutliveTheirKeys(t *testing.T) {
	s, key := k.Open(t, k.Server.URL(), testkit.Own(), none), store.Key{Name: "k"}
	last := Cycle(t, s, key)
	rises := func(when string) {
		t.Helper()
		fence := Cycle(t, s, key)
		if fence <= last {
			t.Fatalf("%s, the fence %d is not above %d", when, fence, last)
		}
		last = fence
	}
	for range 3 {
		// As if it had been given when the clock was an hour ahead.
		k.Server.Query(k.Names(s, "UPDATE @key SET fence = fence + 3600000000"))
		last += 3600 * 1e6
		rises("with the clock set back")
		k.Forget(t, s)
		if n := k.Server.Query(k.Names(s, "SELECT COUNT(*) FROM @key"))[0][0]; n != "0" {
			t.Fatalf("%s keys are left", n)
		}
		rises("after it was forgotten")
	}
}

// Live makes some keys in each condition except done, and returns how many there are.
func Live(t testing.TB, s Store) int {
	t.Helper()
	const each = 10
	var claims []store.Claim
	var settlements []store.Settlement
	add := func(name string, edit func(*store.Claim)) {
		c := store.Claim{Key: store.Key{Name: name}, Token: store.NewToken(), TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}
		edit(&c)
		claims = append(claims, c)
	}
	abandon := func() {
		c := claims[len(claims)-1]
		settlements = append(settlements, store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Abandon})
	}
	for i := range each {
		add(fmt.Sprint("held ", i), func(*store.Claim) {})
		add(fmt.Sprint("shared ", i), func(c *store.Claim) { c.Permits = 2 })
		add(fmt.Sprint("waiting ", i), func(c *store.Claim) { c.Mode = store.Reserve })
		add(fmt.Sprint("abandoned ", i), func(*store.Claim) {})
		abandon()
		add(fmt.Sprint("unknown ", i), func(c *store.Claim) { c.AtMostOnce = true })
		abandon()
	}
	answers, errs := make([]store.Answer, len(claims)), make([]error, len(settlements))
	testkit.Must(t, s.Claim(t.Context(), claims, answers))
	for i, a := range answers {
		if a.Err != nil {
			t.Fatalf("%v: %v", claims[i].Key, a.Err)
		}
	}
	testkit.Must(t, s.Settle(t.Context(), settlements, errs))
	for i, err := range errs {
		if err != nil {
			t.Fatalf("%v: %v", settlements[i].Key, err)
		}
	}
	return len(claims)
}

// ListsLive checks that a listing of the live keys finds as many as there are.
func ListsLive(t testing.TB, s Store, live int) {
	t.Helper()
	n := 0
	for e, err := range s.(store.Inspector).List(t.Context(), store.Query{Conditions: []store.Condition{
		store.ConditionHeld, store.ConditionWaiting, store.ConditionAbandoned, store.ConditionUnknown,
	}}) {
		testkit.Must(t, err)
		if n++; e.Record != nil {
			t.Errorf("%v is listed with its record", e.Key)
		}
	}
	if n != live {
		t.Errorf("%d keys are listed, want %d", n, live)
	}
}
