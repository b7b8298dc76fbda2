package serve

import (
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// relaying is a store that wants to know whether its waiters may ask elsewhere.
type relaying struct {
	dibs.Store
	t        *testing.T
	relays   bool
	notifies bool
}

func (s *relaying) Relay() {
	if s.relays = true; s.notifies {
		s.t.Error("the store is told after the server listens")
	}
}

func (s *relaying) Notify(func(store.Token, store.Answer)) func() {
	s.notifies = true
	return func() {}
}

// TestAServerRelays: the server tells the store that a waiter may ask elsewhere. What the store does
// then is in storetest, and TestAServerEndsUnderAWaiter of the program has real servers.
func TestAServerRelays(t *testing.T) {
	s := &relaying{Store: inMemory(t), t: t}
	start(t, s, nil)
	if !s.relays {
		t.Error("the store is not told")
	}
}
