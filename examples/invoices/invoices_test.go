package invoices

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/stores/memstore"
)

// newSender returns a sender on a store of its own, and the store. mails counts.
func newSender(t *testing.T) (s *Sender, store *memstore.Store, mails *int) {
	t.Helper()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	keys, err := dibs.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	mails = new(int)
	return &Sender{Keys: keys, Mail: func(context.Context, string) error { *mails++; return nil }}, store, mails
}

func TestHeldByAnother(t *testing.T) {
	s, _, mails := newSender(t)
	lease, err := s.Keys.Acquire(t.Context(), "invoice 42", nil) // another caller has it
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(t.Context(), "42"); !errors.Is(err, ErrBusy) || *mails != 0 {
		t.Errorf("%v, and %d mails", err, *mails)
	}
	lease.Release()
	if err := s.Send(t.Context(), "42"); err != nil || *mails != 1 {
		t.Errorf("%v, and %d mails", err, *mails)
	}
}

func TestLeaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store, _ := newSender(t)
		s.Mail = func(ctx context.Context, _ string) error {
			store.ForceRelease(ctx, s.Keys.Key("invoice 42"), "") // as dibs release does
			<-ctx.Done()                                          // at the next renewal
			return context.Cause(ctx)
		}
		if err := s.Send(t.Context(), "42"); !errors.Is(err, dibs.ErrLost) {
			t.Error(err)
		}
	})
}

func TestADayPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, mails := newSender(t)
		first, err := s.Remind(t.Context(), "42")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(23 * time.Hour)
		if again, err := s.Remind(t.Context(), "42"); err != nil || !again.Equal(first) || *mails != 1 {
			t.Errorf("after 23 hours: %v, %v, and %d mails", again, err, *mails)
		}
		time.Sleep(2 * time.Hour)
		if again, err := s.Remind(t.Context(), "42"); err != nil || again.Equal(first) || *mails != 2 {
			t.Errorf("after 25 hours: %v, %v, and %d mails", again, err, *mails)
		}
	})
}

func TestAfterACrash(t *testing.T) {
	s, _, _ := newSender(t)
	lease, err := s.Keys.Acquire(t.Context(), "invoice 42", nil)
	if err != nil {
		t.Fatal(err)
	}
	lease.Abandon(t.Context()) // what a process leaves that died, when its lease has run out
	s.Mail = func(ctx context.Context, _ string) error {
		lease, _ := dibs.FromContext(ctx)
		if lease.Attempt() != 2 {
			t.Errorf("it is attempt %d", lease.Attempt())
		}
		return nil
	}
	if err := s.Send(t.Context(), "42"); err != nil {
		t.Error(err)
	}
}

func TestStoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store, mails := newSender(t)
		store.Close()
		if err := s.Send(t.Context(), "42"); err == nil || errors.Is(err, ErrBusy) || *mails != 0 {
			t.Errorf("%v, and %d mails", err, *mails)
		}
	})
}
