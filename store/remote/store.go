package remote

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// Store is what the stores on SQL servers have in common. It implements store.Store,
// store.Notifier, store.Inspector and store.Pruner.
type Store struct {
	server  *Server
	waiters *waiters
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Notifier  = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
	_ store.Pruner    = (*Store)(nil)
	_ store.Relayer   = (*Store)(nil)
)

// New returns a Store on a server, which must not change after the first call.
func New(server *Server) *Store {
	s := &Store{server: server}
	s.waiters = newWaiters(s)
	return s
}

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if err := s.server.Usable(ctx); err != nil {
		return err
	}
	start, process := time.Now(), s.waiters.process()
	c := newCall(len(claims), func(i int) (store.Key, error) { return claims[i].Key, claims[i].Validate() },
		func(i int, err error) { answers[i] = store.Answer{Err: err} })
	c.plain = func(ctx context.Context, part []int) ([]int, error) {
		return s.server.Claim(ctx, part, c.keys, claims, answers, process)
	}
	c.rest = func(ctx context.Context, part []int) error {
		o := &engine.Terms{MaxWaiters: s.server.MaxWaiters, Process: process}
		how, wants := Looking, engine.Tokens{}
		for _, i := range part {
			x := &claims[i]
			if x.Mode != store.Look {
				how = Creating
			}
			wants[c.keys[i]] = append(wants[c.keys[i]], x.Token, x.From)
		}
		return s.work(ctx, how, wants, func(b *engine.Batch) {
			for _, i := range part {
				answers[i] = store.Answer{}
				b.State(c.keys[i]).Claim(&claims[i], o, &answers[i])
				b.Replays = b.Replays || answers[i].State == store.Done
			}
		})
	}
	err := s.make(ctx, c)
	if err == nil {
		s.waiters.claimed(c, claims, answers, start, process)
	}
	return err
}

// Renew implements store.Store.
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	if err := s.server.Usable(ctx); err != nil {
		return err
	}
	c := newCall(len(renewals), func(i int) (store.Key, error) {
		r := &renewals[i]
		return r.Key, cmp.Or(r.Validate(), s.server.fits(r.Progress))
	}, func(i int, err error) { errs[i] = err })
	c.size = func(i int) int { return len(renewals[i].Progress) }
	c.plain = func(ctx context.Context, part []int) ([]int, error) {
		return s.server.Renew(ctx, part, c.keys, renewals, errs)
	}
	c.rest = func(ctx context.Context, part []int) error {
		return s.lose(ctx, part, c, errs, func(i int) store.Token { return renewals[i].Token },
			func(st *engine.State, i int) bool { return st.Renew(&renewals[i]) })
	}
	return s.make(ctx, c)
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if err := s.server.Usable(ctx); err != nil {
		return err
	}
	c := newCall(len(settlements), func(i int) (store.Key, error) {
		return settlements[i].Key, Validate(s.server, &settlements[i])
	}, func(i int, err error) { errs[i] = err })
	c.size = func(i int) int { return len(settlements[i].Data) }
	c.plain = func(ctx context.Context, part []int) ([]int, error) {
		return s.server.Settle(ctx, part, c.keys, settlements, errs)
	}
	c.rest = func(ctx context.Context, part []int) error {
		return s.lose(ctx, part, c, errs, func(i int) store.Token { return settlements[i].Token },
			func(st *engine.State, i int) bool { return st.Settle(&settlements[i]) })
	}
	err := s.make(ctx, c)
	s.waiters.settled(settlements)
	return err
}

// lose does something with elements whose tokens have a lease or a place. An element is
// lost if do is false.
func (s *Store) lose(ctx context.Context, part []int, c *call, errs []error, token func(i int) store.Token, do func(st *engine.State, i int) bool) error {
	wants := engine.Tokens{}
	for _, i := range part {
		wants[c.keys[i]] = append(wants[c.keys[i]], token(i))
	}
	return s.work(ctx, Locking, wants, func(b *engine.Batch) {
		for _, i := range part {
			if errs[i] = nil; !do(b.State(c.keys[i]), i) {
				errs[i] = store.ErrLost
			}
		}
	})
}

// work is a transaction on some keys. It wakes waiters of this process when it is committed.
func (s *Store) work(ctx context.Context, how Load, wants engine.Tokens, do func(*engine.Batch)) error {
	b := engine.NewBatch(wants, how >= Looking, engine.Micros(s.server.PushedTTL))
	err := s.server.Work(ctx, how, b, func() { do(b) })
	if err == nil && how < Looking {
		s.waiters.wake(b.WakeUps())
	}
	return err
}

// force does something with one key.
func (s *Store) force(ctx context.Context, key store.Key, do func(*engine.State)) error {
	if err := cmp.Or(s.server.Usable(ctx), key.Validate()); err != nil {
		return err
	}
	k := engine.KeyOf(key)
	return s.server.Try(ctx, func() error {
		// As a claim: it may wait for a row that another program has locked, and renewals
		// must not wait behind it.
		return s.work(ctx, Creating, engine.Tokens{k: nil}, func(b *engine.Batch) { do(b.State(k)) })
	})
}

// CatchUpLimit bounds CatchUp. Only tests change it.
var CatchUpLimit = 2 * time.Second

// CatchUp does what a settlement in a transaction of the application left to do, for 2 s at
// most. If it fails, the next transaction on the key does that; waiters learn of it when
// they ask.
func CatchUp(ctx context.Context, s *Store, key store.Key) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CatchUpLimit)
	defer cancel()
	_ = s.force(ctx, key, (*engine.State).Advance)
}

// Validate returns an error if a settlement is wrong, or its record larger than the store or
// the server takes.
func Validate(s *Server, x *store.Settlement) error {
	if err := x.Validate(); err != nil || x.Outcome != store.Keep {
		return err
	}
	if n := len(x.Data); n > s.MaxRecord {
		return fmt.Errorf("%w: the record has %d bytes; at most %d are allowed", store.ErrTooLarge, n, s.MaxRecord)
	}
	return s.fits(x.Data)
}

func (s *Server) fits(data []byte) error {
	if s.Fits == nil {
		return nil
	}
	return s.Fits(data)
}

// Notify implements store.Notifier.
func (s *Store) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	return s.server.Listeners.Notify(wake)
}

// Relay implements store.Relayer.
func (s *Store) Relay() { s.server.Relays.Store(true) }
