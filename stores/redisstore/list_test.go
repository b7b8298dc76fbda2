package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestListReadsNoRecordsForLiveKeys: a listing of the live keys goes through the names, and reads
// nothing of a key that is done.
func TestListReadsNoRecordsForLiveKeys(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	const live, done = 10, 5000
	for i := range live {
		mustGrant(t, s, lock(fmt.Sprint("held ", i)))
	}
	for n := range done / 250 {
		claims, settlements := make([]store.Claim, 250), make([]store.Settlement, 250)
		for i := range claims {
			claims[i] = lock(fmt.Sprintf("order %d.%d", n, i))
			settlements[i] = store.Settlement{Key: claims[i].Key, Token: claims[i].Token, Outcome: store.Keep, Data: []byte("answer"), Retention: time.Hour}
		}
		testkit.Must(t, s.Claim(t.Context(), claims, make([]store.Answer, len(claims))))
		testkit.Must(t, s.Settle(t.Context(), settlements, make([]error, len(settlements))))
	}
	list := func(most int, conditions ...store.Condition) (n int, took map[string]int) {
		t.Helper()
		before := commandsOf(server)
		for _, err := range s.List(t.Context(), store.Query{Conditions: conditions}) {
			testkit.Must(t, err)
			if n++; n == most {
				break
			}
		}
		return n, since(before, commandsOf(server))
	}
	// Of a live key: its state, and whether it has a record.
	if n, took := list(done, store.ConditionHeld, store.ConditionWaiting); n != live || took["get"] > 2*live {
		t.Errorf("%d of %d live keys are listed with %v", n, live, took)
	}
	if n, took := list(100, store.ConditionDone); n != 100 || took["get"] > 2*1024 {
		t.Errorf("%d keys that are done are listed with %v", n, took)
	}
}
