package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
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

func claim(t *testing.T, s *memstore.Store, c dibs.Claim) dibs.Answer {
	t.Helper()
	c.Permits, c.Weight = max(c.Permits, 1), max(c.Weight, 1)
	c.TTL = max(c.TTL, time.Millisecond)
	answers := make([]dibs.Answer, 1)
	if err := s.Claim(t.Context(), []dibs.Claim{c}, answers); err != nil {
		t.Fatal(err)
	}
	return answers[0]
}

func settle(t *testing.T, s *memstore.Store, x dibs.Settlement) error {
	t.Helper()
	errs := make([]error, 1)
	if err := s.Settle(t.Context(), []dibs.Settlement{x}, errs); err != nil {
		t.Fatal(err)
	}
	return errs[0]
}

func named(name string) dibs.Key { return dibs.Key{Name: name} }

// A full store refuses what is new, keeps what it has, and takes what is new
// as soon as something has run out, at that very instant.
func TestMaxKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, &memstore.Options{MaxKeys: 100})
		for i := range 100 {
			c := dibs.Claim{Key: named(fmt.Sprint(i)), Token: dibs.NewToken(), TTL: time.Minute}
			claim(t, s, c)
			x := dibs.Settlement{Key: c.Key, Token: c.Token, Outcome: dibs.Keep, Retention: time.Hour + time.Duration(i)}
			if err := settle(t, s, x); err != nil {
				t.Fatal(err)
			}
		}
		next := dibs.Claim{Key: named("next"), Token: dibs.NewToken(), TTL: time.Minute}
		if a := claim(t, s, next); !errors.Is(a.Err, dibs.ErrFull) || a.State != 0 {
			t.Fatalf("a key too many: %+v", a)
		}
		old := dibs.Claim{Key: named("7"), Token: dibs.NewToken(), MaxAge: dibs.AnyAge}
		if a := claim(t, s, old); a.State != dibs.Done {
			t.Fatalf("a record of a full store: %+v", a)
		}
		time.Sleep(time.Hour - time.Nanosecond)
		if a := claim(t, s, next); !errors.Is(a.Err, dibs.ErrFull) {
			t.Fatalf("before the first record's end: %+v", a)
		}
		time.Sleep(time.Nanosecond)
		if a := claim(t, s, next); a.State != dibs.Granted {
			t.Fatalf("at the first record's end: %+v", a)
		}
		next.Key.Name = "and one more"
		if a := claim(t, s, next); !errors.Is(a.Err, dibs.ErrFull) {
			t.Fatalf("with one record ended and one key come: %+v", a)
		}
	})
}

func TestMaxBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, &memstore.Options{MaxBytes: 1000})
		keep := func(name string, size int) (dibs.Claim, error) {
			c := dibs.Claim{Key: named(name), Token: dibs.NewToken(), TTL: time.Hour}
			claim(t, s, c)
			return c, settle(t, s, dibs.Settlement{
				Key: c.Key, Token: c.Token, Outcome: dibs.Keep, Data: make([]byte, size), Retention: time.Minute,
			})
		}
		if _, err := keep("a", 600); err != nil {
			t.Fatal(err)
		}
		c, err := keep("b", 500)
		if !errors.Is(err, dibs.ErrFull) {
			t.Fatalf("a record too large: %v", err)
		}
		if a := claim(t, s, dibs.Claim{Key: c.Key, Token: dibs.NewToken()}); a.State != dibs.Held {
			t.Fatalf("the key whose record was refused: %+v", a)
		}
		renewal := []dibs.Renewal{{Key: c.Key, Token: c.Token, TTL: time.Hour, Progress: make([]byte, 401)}}
		errs := make([]error, 1)
		if s.Renew(t.Context(), renewal, errs); !errors.Is(errs[0], dibs.ErrFull) {
			t.Fatalf("progress too large: %v", errs[0])
		}
		renewal[0].Progress = renewal[0].Progress[:400]
		if s.Renew(t.Context(), renewal, errs); errs[0] != nil {
			t.Fatalf("progress that fits: %v", errs[0])
		}
		if err := settle(t, s, dibs.Settlement{Key: c.Key, Token: c.Token}); err != nil {
			t.Fatal(err)
		}
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
		claim(t, s, dibs.Claim{Key: named("k"), Token: dibs.NewToken(), TTL: time.Hour})
		for i := range 20 {
			c := dibs.Claim{Key: named("k"), Token: dibs.NewToken(), Mode: dibs.Queue, Stay: time.Hour}
			if i == 13 {
				c.Stay = time.Second
			}
			if a := claim(t, s, c); !a.Queued || a.Ahead != i {
				t.Fatalf("waiter %d: %+v", i, a)
			}
		}
		c := dibs.Claim{Key: named("k"), Token: dibs.NewToken(), Mode: dibs.Queue, Stay: time.Hour}
		if a := claim(t, s, c); !errors.Is(a.Err, dibs.ErrFull) {
			t.Fatalf("a waiter too many: %+v", a)
		}
		time.Sleep(time.Second)
		if a := claim(t, s, c); !a.Queued {
			t.Fatalf("a waiter after a place has run out: %+v", a)
		}
		// Workers of jobs that have all the places can wait at them.
		claim(t, s, dibs.Claim{Key: named("job"), Token: dibs.NewToken(), TTL: time.Hour})
		for i := range 21 {
			job := dibs.Claim{Key: named("job"), Token: dibs.NewToken(), Mode: dibs.Reserve, Stay: time.Hour}
			if a := claim(t, s, job); errors.Is(a.Err, dibs.ErrFull) != (i == 20) {
				t.Fatalf("job %d: %+v", i, a)
			}
			if i >= 18 {
				continue
			}
			worker := dibs.Claim{Key: job.Key, Token: dibs.NewToken(), From: job.Token, Mode: dibs.Queue, Stay: time.Hour}
			if a := claim(t, s, worker); !a.Queued || a.Ahead != i {
				t.Fatalf("the worker of job %d: %+v", i, a)
			}
		}
	})
}

// A record answers all waiters that accept it, however many there are.
func TestKeepWakesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, nil)
		woken := map[dibs.Token]int{}
		stop := s.Notify(func(t dibs.Token, _ dibs.Answer) { woken[t]++ })
		holder := dibs.Claim{Key: named("k"), Token: dibs.NewToken(), TTL: time.Hour}
		claim(t, s, holder)
		waiters := make([]dibs.Claim, 10_000)
		for i := range waiters {
			waiters[i] = dibs.Claim{Key: named("k"), Token: dibs.NewToken(), Mode: dibs.Queue, Stay: time.Hour, MaxAge: time.Hour}
			claim(t, s, waiters[i])
		}
		x := dibs.Settlement{Key: holder.Key, Token: holder.Token, Outcome: dibs.Keep, Retention: time.Hour}
		if err := settle(t, s, x); err != nil {
			t.Fatal(err)
		}
		for i, c := range waiters {
			if n := woken[c.Token]; n != 1 {
				t.Fatalf("waiter %d was woken %d times", i, n)
			}
			if a := claim(t, s, c); a.State != dibs.Done {
				t.Fatalf("waiter %d: %+v", i, a)
			}
		}
		stop()
		clear(woken)
		lock := dibs.Claim{Key: named("k"), Token: dibs.NewToken(), TTL: time.Hour}
		claim(t, s, lock)
		next := dibs.Claim{Key: named("k"), Token: dibs.NewToken(), Mode: dibs.Queue, Stay: time.Hour}
		claim(t, s, next)
		if settle(t, s, dibs.Settlement{Key: lock.Key, Token: lock.Token}); len(woken) != 0 {
			t.Fatal("woken after stop")
		}
	})
}

func TestClose(t *testing.T) {
	s := open(t, nil)
	c := dibs.Claim{Key: named("k"), Token: dibs.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
	claim(t, s, c)
	s.Close()
	ctx := context.Background()
	if err := s.Claim(ctx, []dibs.Claim{c}, make([]dibs.Answer, 1)); !errors.Is(err, dibs.ErrClosed) {
		t.Errorf("Claim: %v", err)
	}
	if _, err := s.Forget(ctx, c.Key); !errors.Is(err, dibs.ErrClosed) {
		t.Errorf("Forget: %v", err)
	}
	for _, err := range s.List(ctx, dibs.Query{}) {
		if !errors.Is(err, dibs.ErrClosed) {
			t.Errorf("List: %v", err)
		}
	}
}
