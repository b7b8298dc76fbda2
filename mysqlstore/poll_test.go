package mysqlstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
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
			if err := other.Claim(t.Context(), []dibs.Claim{{Key: k, Token: token, TTL: time.Minute, Permits: permits}}, answers); err != nil {
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
		t.Cleanup(s.NotifyGrants(func(token dibs.Token, a dibs.Answer) { heard <- a }))
		s.waiting.places[heir] = &waiter{key: keyOf(k), many: permits > 1, until: time.Now().Add(time.Minute), seen: -1}
		if found, _ := s.waiting.look(); !found {
			t.Fatal("nothing was found")
		}
		if a := <-heard; a.State != 0 {
			t.Errorf("%d permits: told %+v, want to be woken", permits, a)
		}
	}
}
