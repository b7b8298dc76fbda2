package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
	"github.com/dibs-go/dibs/stores/memstore"
)

func TestOptionsNameTheField(t *testing.T) {
	for field, o := range map[string]*memstore.Options{
		"MaxKeys":    {MaxKeys: -1},
		"MaxBytes":   {MaxBytes: -1},
		"MaxWaiters": {MaxWaiters: -1},
	} {
		if _, err := memstore.New(o); err == nil || !strings.Contains(err.Error(), "Options."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func claim(t *testing.T, s *memstore.Store, c store.Claim) store.Answer {
	t.Helper()
	c.Permits, c.Weight = max(c.Permits, 1), max(c.Weight, 1)
	c.TTL = max(c.TTL, time.Millisecond)
	answers := make([]store.Answer, 1)
	testkit.Must(t, s.Claim(t.Context(), []store.Claim{c}, answers))
	return answers[0]
}

func settle(t *testing.T, s *memstore.Store, x store.Settlement) error {
	t.Helper()
	errs := make([]error, 1)
	testkit.Must(t, s.Settle(t.Context(), []store.Settlement{x}, errs))
	return errs[0]
}

func named(name string) store.Key { return store.Key{Name: name} }

// A full store refuses what is new, keeps what it has, and takes what is new
// as soon as something has run out, at that very instant.
func TestMaxKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, &memstore.Options{MaxKeys: 100})
		for i := range 100 {
			c := store.Claim{Key: named(fmt.Sprint(i)), Token: store.NewToken(), TTL: time.Minute}
			claim(t, s, c)
			x := store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Keep, Retention: time.Hour + time.Duration(i)}
			testkit.Must(t, settle(t, s, x))
		}
		next := store.Claim{Key: named("next"), Token: store.NewToken(), TTL: time.Minute}
		if a := claim(t, s, next); !errors.Is(a.Err, store.ErrFull) || a.State != 0 {
			t.Fatalf("a key too many: %+v", a)
		}
		old := store.Claim{Key: named("7"), Token: store.NewToken(), MaxAge: store.AnyAge}
		if a := claim(t, s, old); a.State != store.Done {
			t.Fatalf("a record of a full store: %+v", a)
		}
		time.Sleep(time.Hour - time.Nanosecond)
		if a := claim(t, s, next); !errors.Is(a.Err, store.ErrFull) {
			t.Fatalf("before the first record's end: %+v", a)
		}
		time.Sleep(time.Nanosecond)
		if a := claim(t, s, next); a.State != store.Granted {
			t.Fatalf("at the first record's end: %+v", a)
		}
		next.Key.Name = "and one more"
		if a := claim(t, s, next); !errors.Is(a.Err, store.ErrFull) {
			t.Fatalf("with one record ended and one key come: %+v", a)
		}
	})
}

func TestMaxBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, &memstore.Options{MaxBytes: 1000})
		keep := func(name string, size int) (store.Claim, error) {
			c := store.Claim{Key: named(name), Token: store.NewToken(), TTL: time.Hour}
			claim(t, s, c)
			return c, settle(t, s, store.Settlement{
				Key: c.Key, Token: c.Token, Outcome: store.Keep, Data: make([]byte, size), Retention: time.Minute,
			})
		}
		if _, err := keep("a", 600); err != nil {
			t.Fatal(err)
		}
		c, err := keep("b", 500)
		if !errors.Is(err, store.ErrFull) {
			t.Fatalf("a record too large: %v", err)
		}
		if a := claim(t, s, store.Claim{Key: c.Key, Token: store.NewToken()}); a.State != store.Held {
			t.Fatalf("the key whose record was refused: %+v", a)
		}
		renewal := []store.Renewal{{Key: c.Key, Token: c.Token, TTL: time.Hour, Progress: make([]byte, 401)}}
		errs := make([]error, 1)
		if s.Renew(t.Context(), renewal, errs); !errors.Is(errs[0], store.ErrFull) {
			t.Fatalf("progress too large: %v", errs[0])
		}
		renewal[0].Progress = renewal[0].Progress[:400]
		if s.Renew(t.Context(), renewal, errs); errs[0] != nil {
			t.Fatalf("progress that fits: %v", errs[0])
		}
		testkit.Must(t, settle(t, s, store.Settlement{Key: c.Key, Token: c.Token}))
		if _, err := keep("a", 1000); err != nil {
			t.Fatalf("a record in place of another: %v", err)
		}
		time.Sleep(time.Minute)
		if _, err := keep("c", 1000); err != nil {
			t.Fatalf("a record after the other's end: %v", err)
		}
	})
}

func TestMaxWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, &memstore.Options{MaxWaiters: 20})
		claim(t, s, store.Claim{Key: named("k"), Token: store.NewToken(), TTL: time.Hour})
		for i := range 20 {
			c := store.Claim{Key: named("k"), Token: store.NewToken(), Mode: store.Queue, PlaceTTL: time.Hour}
			if i == 13 {
				c.PlaceTTL = time.Second
			}
			if a := claim(t, s, c); !a.Queued || a.Ahead != i {
				t.Fatalf("waiter %d: %+v", i, a)
			}
		}
		c := store.Claim{Key: named("k"), Token: store.NewToken(), Mode: store.Queue, PlaceTTL: time.Hour}
		if a := claim(t, s, c); !errors.Is(a.Err, store.ErrFull) {
			t.Fatalf("a waiter too many: %+v", a)
		}
		time.Sleep(time.Second)
		if a := claim(t, s, c); !a.Queued {
			t.Fatalf("a waiter after a place has run out: %+v", a)
		}
		// Workers of jobs that have all the places can wait at them.
		claim(t, s, store.Claim{Key: named("job"), Token: store.NewToken(), TTL: time.Hour})
		for i := range 21 {
			job := store.Claim{Key: named("job"), Token: store.NewToken(), Mode: store.Reserve, PlaceTTL: time.Hour}
			if a := claim(t, s, job); errors.Is(a.Err, store.ErrFull) != (i == 20) {
				t.Fatalf("job %d: %+v", i, a)
			}
			if i >= 18 {
				continue
			}
			worker := store.Claim{Key: job.Key, Token: store.NewToken(), From: job.Token, Mode: store.Queue, PlaceTTL: time.Hour}
			if a := claim(t, s, worker); !a.Queued || a.Ahead != i {
				t.Fatalf("the worker of job %d: %+v", i, a)
			}
		}
	})
}

func TestClose(t *testing.T) {
	s := open(t, nil)
	c := store.Claim{Key: named("k"), Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
	claim(t, s, c)
	s.Close()
	ctx := context.Background()
	if err := s.Claim(ctx, []store.Claim{c}, make([]store.Answer, 1)); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Claim: %v", err)
	}
	if _, err := s.Forget(ctx, c.Key, ""); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Forget: %v", err)
	}
	for _, err := range s.List(ctx, store.Query{}) {
		if !errors.Is(err, store.ErrClosed) {
			t.Errorf("List: %v", err)
		}
	}
}

func TestConformance(t *testing.T) {
	storetest.Run(t, &storetest.Harness{
		Virtual: true,
		New: func(t testing.TB, _ time.Duration) *storetest.Subject {
			return &storetest.Subject{
				Open: func() store.Store {
					s := open(t, nil)
					t.Cleanup(func() { emptied(t, s) })
					return s
				},
				// An empty store is what a restart leaves.
				Wipe: func() {},
			}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Processes: "the data lives in one process",
			storetest.Skew:      "it has no clock but the process's monotonic one",
			storetest.Restart:   "nothing outlives the process: a restart is a Wipe",
		},
	})
}

// emptied ends all that a property has left in a store, and checks that the store has
// counted right what it kept.
func emptied(t testing.TB, s *memstore.Store) {
	t.Helper()
	ctx := context.Background()
	for e, err := range s.List(ctx, store.Query{Places: true}) {
		testkit.Must(t, err)
		for _, p := range e.Places {
			x := []store.Settlement{{Key: e.Key, Token: p.Token}}
			testkit.Must(t, s.Settle(ctx, x, make([]error, 1)))
		}
		if _, err := s.ForceRelease(ctx, e.Key, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Forget(ctx, e.Key, ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Prune(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if keys, bytes := s.Kept(); keys != 0 || bytes != 0 {
		t.Errorf("a store that was emptied has %d keys and %d bytes", keys, bytes)
	}
}

// open returns a new store that the end of the test closes.
func open(t testing.TB, o *memstore.Options) *memstore.Store {
	t.Helper()
	s, err := memstore.New(o)
	testkit.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}
