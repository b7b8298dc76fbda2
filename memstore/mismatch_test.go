package memstore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// A waiter that asks something else than the attempt that was abandoned before
// it is not offered the key: it would go on with another's work.
func TestAbandonedMismatchIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, nil)
		woken := map[dibs.Token]int{}
		defer s.Notify(func(t dibs.Token) { woken[t]++ })()
		c := func(asked byte) dibs.Claim {
			return dibs.Claim{
				Key: named("k"), Token: dibs.NewToken(), Mode: dibs.Queue,
				TTL: time.Minute, Place: time.Hour, Fingerprint: dibs.Fingerprint{asked},
			}
		}
		holder, first, other, last := c(0), c(1), c(2), c(0)
		for _, c := range []dibs.Claim{holder, first, other, last} {
			claim(t, s, c)
		}
		if err := settle(t, s, dibs.Settlement{Key: holder.Key, Token: holder.Token}); err != nil {
			t.Fatal(err)
		}
		if a := claim(t, s, first); a.State != dibs.Granted {
			t.Fatalf("the first waiter: %+v", a)
		}
		time.Sleep(time.Minute) // abandoned
		synctest.Wait()
		if woken[other.Token] != 1 || woken[last.Token] != 1 {
			t.Fatalf("woken %d and %d times", woken[other.Token], woken[last.Token])
		}
		if a := claim(t, s, last); a.State != dibs.Granted || a.Attempt != 2 {
			t.Fatalf("the last waiter: %+v", a)
		}
		settle(t, s, dibs.Settlement{Key: last.Key, Token: last.Token, Outcome: dibs.Abandon})
		if a := claim(t, s, other); a.State != dibs.Granted {
			t.Fatalf("the other, after an attempt that asked nothing: %+v", a)
		}
	})
}
