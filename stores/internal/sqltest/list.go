package sqltest

import (
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

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
