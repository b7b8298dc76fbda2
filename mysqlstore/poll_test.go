package mysqlstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/internal/sqltest"
)

// TestHeirAsks: who was granted the key by an answer that got lost hears of the grant
// when its process looks, and then has to ask: what was saved before it is not told.
func TestHeirAsks(t *testing.T) {
	t.Parallel()
	for _, permits := range []int{1, 2} {
		prefix := ownPrefix()
		s, other := open(t, mariadb().URL(), &Options{Prefix: prefix}), open(t, mariadb().URL(), &Options{Prefix: prefix})
		k, heir := dibs.Key{Name: "k"}, dibs.NewToken()
		claim := func(token dibs.Token) dibs.Answer {
			answers := make([]dibs.Answer, 1)
			if err := other.Claim(t.Context(), []dibs.Claim{{Key: k, Token: token, TTL: time.Minute, Permits: permits, Weight: 1}}, answers); err != nil {
				t.Fatal(err)
			}
			return answers[0]
		}
		holder, errs := dibs.NewToken(), make([]error, 1)
		claim(holder)
		err := other.Renew(t.Context(), []dibs.Renewal{{Key: k, Token: holder, TTL: time.Minute, Progress: []byte("half")}}, errs)
		if err != nil || errs[0] != nil {
			t.Fatal(err, errs[0])
		}
		err = other.Settle(t.Context(), []dibs.Settlement{{Key: k, Token: holder, Outcome: dibs.Abandon}}, errs)
		if err != nil || errs[0] != nil {
			t.Fatal(err, errs[0])
		}
		if a := claim(heir); a.State != dibs.Granted || string(a.Progress) != "half" {
			t.Fatalf("%+v, want a grant with the progress", a)
		}
		heard := make(chan dibs.Answer, 1)
		t.Cleanup(s.Notify(func(token dibs.Token, a dibs.Answer) { heard <- a }))
		s.waiting.places[heir] = &waiter{key: engine.KeyOf(k), until: time.Now().Add(time.Minute)}
		if found, _ := s.waiting.look(); !found {
			t.Fatal("nothing was found")
		}
		if a := <-heard; a.State != 0 {
			t.Errorf("%d permits: told %+v, want to be woken", permits, a)
		}
	}
}

// TestWakeWhenAHoldIsOver: who waits behind a reserved place that nobody claims from is
// woken when its Hold is over, also where somebody in another process was kept by it.
func TestWakeWhenAHoldIsOver(t *testing.T) {
	t.Parallel()
	o := &Options{Prefix: ownPrefix(), PruneEvery: -1} // which would find it as well, later
	s, other := open(t, mariadb().URL(), o), open(t, mariadb().URL(), o)
	woken := make(chan dibs.Token, 10)
	t.Cleanup(s.Notify(func(token dibs.Token, _ dibs.Answer) { woken <- token }))
	k := dibs.Key{Name: "k"}
	held := func(s *Store, c dibs.Claim) dibs.Claim {
		t.Helper()
		c.Key, c.Token = k, dibs.NewToken()
		if a := sqltest.Ask(t, s, c); a.State != dibs.Held {
			t.Fatalf("%+v, want Held", a)
		}
		return c
	}
	holder := sqltest.Hold(t, other, k.Name)
	held(other, dibs.Claim{Mode: dibs.Reserve, Hold: 50 * time.Millisecond})
	waiter := held(s, dibs.Claim{Mode: dibs.Queue})
	if err := sqltest.Settle(t, other, dibs.Settlement{Key: k, Token: holder}); err != nil {
		t.Fatal(err)
	}
	held(other, dibs.Claim{})
	select {
	case token := <-woken:
		if token != waiter.Token {
			t.Fatalf("%v was woken, want the waiter", token)
		}
	case <-time.After(failpoint.Limit):
		t.Fatal("the waiter was not woken")
	}
	if a := sqltest.Ask(t, s, waiter); a.State != dibs.Granted {
		t.Fatalf("the waiter was answered %+v", a)
	}
}
