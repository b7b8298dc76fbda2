package memstore

import (
	"testing"

	"github.com/dibs-go/dibs"
)

// A sweep that is under way when the store is closed sets no timer again.
func TestCloseEndsTheTimer(t *testing.T) {
	s, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dibs.Claim{Key: dibs.Key{Name: "k"}, Token: dibs.NewToken(), TTL: 1 << 40, Permits: 1, Weight: 1}
	if err := s.Claim(t.Context(), []dibs.Claim{c}, make([]dibs.Answer, 1)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s.sweeper.set.Store(false) // this and the next line are what the sweep does
	s.sweeper.start(s)
	if s.sweeper.timer.Stop() {
		t.Error("the timer is set")
	}
}
