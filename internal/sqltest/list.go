package sqltest

import (
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// Live makes some keys in each condition except done, and returns how many there are.
func Live(t testing.TB, s Store) int {
	t.Helper()
	const each = 10
	var claims []dibs.Claim
	var settlements []dibs.Settlement
	add := func(name string, edit func(*dibs.Claim)) {
		c := dibs.Claim{Key: dibs.Key{Name: name}, Token: dibs.NewToken(), TTL: time.Hour, Stay: time.Hour, Permits: 1, Weight: 1}
		edit(&c)
		claims = append(claims, c)
	}
	abandon := func() {
		c := claims[len(claims)-1]
		settlements = append(settlements, dibs.Settlement{Key: c.Key, Token: c.Token, Outcome: dibs.Abandon})
	}
	for i := range each {
		add(fmt.Sprint("held ", i), func(*dibs.Claim) {})
		add(fmt.Sprint("shared ", i), func(c *dibs.Claim) { c.Permits = 2 })
		add(fmt.Sprint("waiting ", i), func(c *dibs.Claim) { c.Mode = dibs.Reserve })
		add(fmt.Sprint("abandoned ", i), func(*dibs.Claim) {})
		abandon()
		add(fmt.Sprint("unknown ", i), func(c *dibs.Claim) { c.AtMostOnce = true })
		abandon()
	}
	answers, errs := make([]dibs.Answer, len(claims)), make([]error, len(settlements))
	if err := s.Claim(t.Context(), claims, answers); err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if a.Err != nil {
			t.Fatalf("%v: %v", claims[i].Key, a.Err)
		}
	}
	if err := s.Settle(t.Context(), settlements, errs); err != nil {
		t.Fatal(err)
	}
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
	for e, err := range s.(dibs.Inspector).List(t.Context(), dibs.Query{Conditions: []dibs.Condition{
		dibs.ConditionHeld, dibs.ConditionWaiting, dibs.ConditionAbandoned, dibs.ConditionUnknown,
	}}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; e.Record != nil {
			t.Errorf("%v is listed with its record", e.Key)
		}
	}
	if n != live {
		t.Errorf("%d keys are listed, want %d", n, live)
	}
}
