package engine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
)

// Store is what the stores on SQL servers have in common. It implements dibs.Store,
// dibs.Notifier, dibs.Inspector and dibs.Pruner.
type Store struct {
	server  *Server
	waiters *waiters
}

var (
	_ dibs.Store     = (*Store)(nil)
	_ dibs.Notifier  = (*Store)(nil)
	_ dibs.Inspector = (*Store)(nil)
	_ dibs.Pruner    = (*Store)(nil)
)

// New returns a Store on a server, which must not change after the first call.
func New(server *Server) *Store {
	s := &Store{server: server}
	s.waiters = newWaiters(s)
	return s
}

// Claim implements dibs.Store.
func (s *Store) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	if err := s.server.Usable(ctx); err != nil {
		return err
	}
	start, process := time.Now(), s.waiters.process()
	c := newCall(len(claims), func(i int) (dibs.Key, error) { return claims[i].Key, claims[i].Validate() },
		func(i int, err error) { answers[i] = dibs.Answer{Err: err} })
	c.plain = func(ctx context.Context, part []int) ([]int, error) {
		return s.server.Claim(ctx, part, c.keys, claims, answers, process)
	}
	c.rest = func(ctx context.Context, part []int) error {
		o := &Terms{MaxWaiters: s.server.MaxWaiters, Process: process}
		how, wants := Looking, Tokens{}
		for _, i := range part {
			x := &claims[i]
			if x.Mode != dibs.Look {
				how = Creating
			}
			wants[c.keys[i]] = append(wants[c.keys[i]], x.Token, x.From)
		}
		return s.work(ctx, how, wants, func(b *Batch) {
			for _, i := range part {
				answers[i] = dibs.Answer{}
				b.State(c.keys[i]).Claim(&claims[i], o, &answers[i])
			}
		})
	}
	err := s.make(ctx, c)
	if err == nil {
		s.waiters.claimed(c, claims, answers, start, process)
	}
	return err
}

// Renew implements dibs.Store.
func (s *Store) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	if err := s.server.Usable(ctx); err != nil {
		return err
	}
	c := newCall(len(renewals), func(i int) (dibs.Key, error) {
		r := &renewals[i]
		return r.Key, cmp.Or(r.Validate(), s.server.fits(r.Progress))
	}, func(i int, err error) { errs[i] = err })
	c.size = func(i int) int { return len(renewals[i].Progress) }
	c.plain = func(ctx context.Context, part []int) ([]int, error) {
		return s.server.Renew(ctx, part, c.keys, renewals, errs)
	}
	c.rest = func(ctx context.Context, part []int) error {
		return s.lose(ctx, part, c, errs, func(i int) dibs.Token { return renewals[i].Token },
			func(st *State, i int) bool { return st.Renew(&renewals[i]) })
	}
	return s.make(ctx, c)
}

// Settle implements dibs.Store.
func (s *Store) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	if err := s.server.Usable(ctx); err != nil {
		return err
	}
	c := newCall(len(settlements), func(i int) (dibs.Key, error) {
		return settlements[i].Key, Validate(s.server, &settlements[i])
	}, func(i int, err error) { errs[i] = err })
	c.size = func(i int) int { return len(settlements[i].Data) }
	c.plain = func(ctx context.Context, part []int) ([]int, error) {
		return s.server.Settle(ctx, part, c.keys, settlements, errs)
	}
	c.rest = func(ctx context.Context, part []int) error {
		return s.lose(ctx, part, c, errs, func(i int) dibs.Token { return settlements[i].Token },
			func(st *State, i int) bool { return st.Settle(&settlements[i]) })
	}
	err := s.make(ctx, c)
	s.waiters.settled(settlements)
	return err
}

// lose does something with elements whose tokens have a lease or a place. An element is
// lost if do is false.
func (s *Store) lose(ctx context.Context, part []int, c *call, errs []error, token func(i int) dibs.Token, do func(st *State, i int) bool) error {
	wants := Tokens{}
	for _, i := range part {
		wants[c.keys[i]] = append(wants[c.keys[i]], token(i))
	}
	return s.work(ctx, Locking, wants, func(b *Batch) {
		for _, i := range part {
			if errs[i] = nil; !do(b.State(c.keys[i]), i) {
				errs[i] = dibs.ErrLost
			}
		}
	})
}

// work is a transaction on some keys. It wakes waiters of this process when it is committed.
func (s *Store) work(ctx context.Context, how Load, wants Tokens, do func(*Batch)) error {
	b := NewBatch(wants, how >= Looking, Micros(s.server.PushedTTL))
	err := s.server.Work(ctx, how, b, func() { do(b) })
	if err == nil && how < Looking {
		s.waiters.wake(b.WakeUps())
	}
	return err
}

// force does something with one key.
func (s *Store) force(ctx context.Context, key dibs.Key, do func(*State)) error {
	if err := cmp.Or(s.server.Usable(ctx), key.Validate()); err != nil {
		return err
	}
	k := KeyOf(key)
	return s.server.Try(ctx, func() error {
		// As a claim: it may wait for a row that another program has locked, and renewals
		// must not wait behind it.
		return s.work(ctx, Creating, Tokens{k: nil}, func(b *Batch) { do(b.State(k)) })
	})
}

// CatchUpLimit bounds CatchUp. Only tests change it.
var CatchUpLimit = 2 * time.Second

// CatchUp does what a settlement in a transaction of the application left to do, for 2 s at
// most. If it fails, the next transaction on the key does that; waiters learn of it when
// they ask.
func CatchUp(ctx context.Context, s *Store, key dibs.Key) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CatchUpLimit)
	defer cancel()
	_ = s.force(ctx, key, (*State).Advance)
}

// Validate returns an error if a settlement is wrong, or its record larger than the store or
// the server takes.
func Validate(s *Server, x *dibs.Settlement) error {
	if err := x.Validate(); err != nil || x.Outcome != dibs.Keep {
		return err
	}
	if n := len(x.Data); n > s.MaxRecord {
		return fmt.Errorf("%w: the record has %d bytes; at most %d are allowed", dibs.ErrTooLarge, n, s.MaxRecord)
	}
	return s.fits(x.Data)
}

func (s *Server) fits(data []byte) error {
	if s.Fits == nil {
		return nil
	}
	return s.Fits(data)
}

// Notify implements dibs.Notifier.
func (s *Store) Notify(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	return s.server.Listeners.Notify(wake)
}
