package memstore

import (
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// A sweep that is under way when the store is closed sets no timer again.
func TestCloseEndsTheTimer(t *testing.T) {
	s, err := New(nil)
	testkit.Must(t, err)
	c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: 1 << 40, Permits: 1, Weight: 1}
	testkit.Must(t, s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1)))
	s.Close()
	s.sweeper.set.Store(false) // this and the next line are what the sweep does
	s.sweeper.start(s)
	if s.sweeper.timer.Stop() {
		t.Error("the timer is set")
	}
}
