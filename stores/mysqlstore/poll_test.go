package mysqlstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestWakeWhenAGraceIsOver: a waiter behind a reserved place is woken when the Grace of the place is
// over, even if the place blocked a client in another process.
func TestWakeWhenAGraceIsOver(t *testing.T) {
	t.Parallel()
	o := &Options{Prefix: testkit.Own(), PruneEvery: -1} // which would find it as well, later
	s, other := open(t, mariadb().URL(), o), open(t, mariadb().URL(), o)
	woken := make(chan store.Token, 10)
	t.Cleanup(s.Notify(func(token store.Token, _ store.Answer) { woken <- token }))
	k := store.Key{Name: "k"}
	held := func(s *Store, c store.Claim) store.Claim {
		t.Helper()
		c.Key, c.Token = k, store.NewToken()
		if a := sqltest.Ask(t, s, c); a.State != store.Held {
			t.Fatalf("%+v, want Held", a)
		}
		return c
	}
	holder := sqltest.Hold(t, other, k.Name)
	held(other, store.Claim{Mode: store.Reserve, Grace: 50 * time.Millisecond})
	waiter := held(s, store.Claim{Mode: store.Queue})
	testkit.Must(t, sqltest.Settle(t, other, store.Settlement{Key: k, Token: holder}))
	held(other, store.Claim{})
	if token := testkit.Await(t, "the waiter is woken", woken); token != waiter.Token {
		t.Fatalf("%v was woken, want the waiter", token)
	}
	if a := sqltest.Ask(t, s, waiter); a.State != store.Granted {
		t.Fatalf("the waiter was answered %+v", a)
	}
}
