package pgstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/sqltest"
)

// TestLookOnlyReads: who looks at a key that is held, or whose next one was told so, waits
// for nobody who has its row locked, and so keeps nobody waiting.
func TestLookOnlyReads(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), ownNames())
	c := sqltest.Client(t, s, nil)
	lease, err := c.Acquire(t.Context(), "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	places := make([]dibs.Place, 3)
	for i := range places {
		if places[i], _, err = c.Reserve(t.Context(), "k", time.Hour, nil); err != nil {
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

// TestLookAtReserved: of a key that nobody ever held it is told how long the place stands
// that comes first, by every look.
func TestLookAtReserved(t *testing.T) {
	t.Parallel()
	s := open(t, shared().URL(), ownNames())
	var all []dibs.Claim
	for range 2 {
		all = append(all, dibs.Claim{
			Key: dibs.Key{Name: "k"}, Token: dibs.NewToken(), Mode: dibs.Reserve, TTL: time.Millisecond, Place: time.Hour, Permits: 1,
		})
	}
	answers := make([]dibs.Answer, 1)
	for i := range all {
		if err := s.Claim(t.Context(), all[i:i+1], answers); err != nil || answers[0].Err != nil {
			t.Fatal(err, answers[0].Err)
		}
	}
	look := dibs.Claim{Key: all[1].Key, Token: dibs.NewToken(), Mode: dibs.Look, Redeems: all[1].Token, Permits: 1}
	for range 2 { // the first one tells whose turn it is
		if err := s.Claim(t.Context(), []dibs.Claim{look}, answers); err != nil {
			t.Fatal(err)
		}
		if a := answers[0]; a.State != dibs.Held || !a.Queued || a.Ahead != 1 || a.Left < 50*time.Minute || a.Left > time.Hour {
			t.Errorf("the look was answered %+v", a)
		}
	}
}
