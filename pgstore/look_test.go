package pgstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// TestLookOnlyReads: who looks at a key that is held, or whose next one was told so, waits
// for nobody who has its row locked, and so keeps nobody waiting.
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
	stand := func(want ...dibs.Standing) {
		t.Helper()
		for i, p := range places {
			if s, err := c.Standing(t.Context(), p, nil); err != nil || s != want[i] {
				t.Errorf("place %d: %+v, %v; want %+v", i, s, err, want[i])
			}
		}
	}
	stand(dibs.Standing{Waits: true}, dibs.Standing{Waits: true, Ahead: 1}, dibs.Standing{Waits: true, Ahead: 2})
	if held, err := c.Held(t.Context(), "k"); err != nil || !held {
		t.Errorf("the key is held: %v, %v", held, err)
	}
	unlock()
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
	unlock = lockKeys(t, s)
	stand(dibs.Standing{}, dibs.Standing{Waits: true, Ahead: 1, Idle: true}, dibs.Standing{Waits: true, Ahead: 2, Idle: true})
	if held, err := c.Held(t.Context(), "k"); err != nil || !held {
		t.Errorf("the key is somebody's: %v, %v", held, err)
	}
	unlock()
}
