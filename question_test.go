package dibs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// TestToldWhileItsQuestionIsUnderWay: what is told then is not taken before the answer,
// as the question might reach the store after the lease's end, and get another.
func TestToldWhileItsQuestionIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTeller(t)
		c := newClient(t, s, nil)
		_, end := s.hold(t, "k")
		waiter := await(t, c, nil)
		s.set(nil, func(string) error { time.Sleep(100 * time.Millisecond); return nil })
		time.Sleep(dibs.PushedTTL/2 + 40*time.Millisecond) // the store has done what it asked for
		s.set(nil, nil)
		end()
		if waiter.over() {
			t.Fatal("it has not waited for the answer")
		}
		waiter.begins(t, s, 60*time.Millisecond, 2)
	})
}

// TestWokenWhileItsQuestionWaits: the answer to a question does not make up for a wake-up
// that came before it.
func TestWokenWhileItsQuestionWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTeller(t)
		c := newClient(t, s, nil)
		_, end := s.hold(t, "k")
		waiter := await(t, c, nil)
		time.Sleep(dibs.PushedTTL/2 - time.Millisecond)
		others := keepBusy(t, s, c, 20*time.Millisecond)
		time.Sleep(5 * time.Millisecond)
		s.wake(s.first(), dibs.Answer{})
		<-others
		synctest.Wait()
		if claims, _, _ := s.elements(); claims != 4 {
			t.Errorf("%d claims, want the other one and three of the waiter", claims)
		}
		end()
		release(t, waiter.got(t))
		empty(t, s)
	})
}

// keepBusy keeps the store busy with another key for d. What it returns is closed then.
func keepBusy(t *testing.T, s *teller, c *dibs.Client, d time.Duration) <-chan struct{} {
	t.Helper()
	s.set(func(string) error { time.Sleep(d); return nil }, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.TryDo(t.Context(), "another", func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
	}()
	synctest.Wait()
	s.set(nil, nil)
	return done
}

// first returns the token that was claimed with first.
func (s *teller) first() dibs.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims[0][0].Token
}

// TestHeldWhileTheStoreIsAway: an ErrHeld with no time left says that nobody holds the key,
// so a waiter whose questions get no answer must not say that.
func TestHeldWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, nil)
		lease, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { s.set(func(string) error { return errCut }, nil) })
		time.AfterFunc(4*time.Second, func() { s.set(nil, nil) })
		_, err = c.Acquire(t.Context(), "k", &dibs.AcquireOptions{Wait: 3 * time.Second})
		held, ok := errors.AsType[*dibs.HeldError](err)
		if !ok || held.Left == 0 || held.Waited != 3*time.Second {
			t.Errorf("%v, want an ErrHeld that says for how long", err)
		}
		time.Sleep(2 * time.Second)
		release(t, lease)
		empty(t, s)
	})
}
