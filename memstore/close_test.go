package memstore

import (
	"testing"

	"github.com/dibs-go/dibs/store"
)

// A sweep that is under way when the store is closed sets no timer again.
func TestCloseEndsTheTimer(t *testing.T) {
	s, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: 1 << 40, Permits: 1, Weight: 1}
	if err := s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s.sweeper.set.Store(false) // this and the next line are what the sweep does
	s.sweeper.start(s)
	if s.sweeper.timer.Stop() {
		t.Error("the timer is set")
	}
}
