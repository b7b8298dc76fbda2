package redisstore

import (
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestNoReplica: with none at all nothing is granted, and the error says how many
// there have to be.
func TestNoReplica(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), &Options{Replicas: 2, ReplicaWait: 50 * time.Millisecond})
	claims := []store.Claim{lock("a"), lock("b"), lock("c")}
	answers := make([]store.Answer, len(claims))
	testkit.Must(t, s.Claim(t.Context(), claims, answers))
	for i, a := range answers {
		if !errors.Is(a.Err, ErrNotReplicated) || a.State != 0 {
			t.Errorf("claim %d was answered %+v", i, a)
		}
	}
	if left := leftover(t, sharedRedis(), s.Prefix()); len(left) > 0 {
		t.Errorf("%q was left", left)
	}
}

// wakeUps are the wake-ups of a store's waiters, by token.
type wakeUps struct {
	t       *testing.T
	arrived chan wakeUp
	early   map[store.Token]store.Answer
}

type wakeUp struct {
	token  store.Token
	answer store.Answer
}

func newWakeUps(t *testing.T, s *Store) *wakeUps {
	w := &wakeUps{t: t, arrived: make(chan wakeUp, 1000), early: map[store.Token]store.Answer{}}
	t.Cleanup(s.Notify(func(token store.Token, a store.Answer) { w.arrived <- wakeUp{token, a} }))
	return w
}

// next returns the next wake-up of a token.
func (w *wakeUps) next(token store.Token) store.Answer {
	w.t.Helper()
	late := time.NewTimer(testkit.Limit)
	defer late.Stop()
	for {
		if a, ok := w.early[token]; ok {
			delete(w.early, token)
			return a
		}
		select {
		case wakeUp := <-w.arrived:
			w.early[wakeUp.token] = wakeUp.answer
		case <-late.C:
			w.t.Fatal("a waiter got no wake-up")
		}
	}
}

// TestAboutToListen: a waiter whose process is about to subscribe has its turn before one
// behind it that could get a pushed grant.
func TestAboutToListen(t *testing.T) {
	t.Parallel()
	url := ownURL()
	s, other := open(t, url, nil), open(t, url, nil)
	newWakeUps(t, s)
	holder, first, second := lock("k"), lock("k", queued), lock("k", queued)
	mustGrant(t, s, holder)
	mustWait(t, s, first) // the first waiter
	mustListen(t, other, second)
	mustSettle(t, s, holder, store.Release)
	mustWait(t, other, second)
	mustGrant(t, s, first)
}
