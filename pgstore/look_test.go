package pgstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// TestLookOnlyReads: who looks at a key that is held waits for nobody who has its row
// locked, and so keeps nobody waiting.
func TestLookOnlyReads(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), &Options{Schema: ownSchema()})
	c := newClient(t, s, nil)
	lease, err := c.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	places := make([]dibs.Place, 3)
	for i := range places {
		if places[i], err = c.Reserve(t.Context(), "k", time.Hour, nil); err != nil {
			t.Fatal(err)
		}
	}
	unlock := lockKeys(t, s)
	for i, p := range places {
		if s, err := c.Standing(t.Context(), p, nil); err != nil || s != (dibs.Standing{Waits: true, Ahead: i}) {
			t.Errorf("place %d: %+v, %v", i, s, err)
		}
	}
	if held, err := c.Held(t.Context(), "k"); err != nil || !held {
		t.Errorf("the key is held: %v, %v", held, err)
	}
	unlock()
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
}
