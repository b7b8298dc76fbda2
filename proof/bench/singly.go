package main

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// singlyName is a store that is called for one key at a time, on a connection for each
// caller: the same statements, without what the client makes of them.
const singlyName = "one by one"

// callersConns is how many connections a client has that needs one for each caller.
const callersConns = 64

// storeConns is how many calls of one kind a store of PostgreSQL or MySQL makes at
// once, with a connection each.
const storeConns = 4

// singlyLocker has a slot for each connection of its stores.
type singlyLocker struct{ slots chan dibs.Store }

// enterSingly adds a singlyLocker whose stores have a connection for each caller.
func (b *candidates) enterSingly(open func() (dibs.Store, func() error, error)) error {
	l := singlyLocker{make(chan dibs.Store, callersConns)}
	b.lockers[singlyName] = []locker{l}
	for range callersConns / storeConns {
		store, closeStore, err := open()
		if err != nil {
			return err
		}
		b.close = append(b.close, func() { _ = closeStore() })
		for range storeConns {
			l.slots <- store
		}
	}
	return nil
}

func (l singlyLocker) lock(ctx context.Context, key string, section func()) error {
	s := <-l.slots
	defer func() { l.slots <- s }()
	k, token := dibs.Key{Name: key}, store.NewToken()
	answers, errs := make([]store.Answer, 1), make([]error, 1)
	claim := store.Claim{Key: k, Token: token, TTL: lockTTL, Permits: 1, Weight: 1, Owner: store.Owner{Label: "bench"}}
	if err := s.Claim(ctx, []store.Claim{claim}, answers); err != nil {
		return err
	}
	if answers[0].State != store.Granted {
		return errors.Join(errHeld, answers[0].Err)
	}
	section()
	if err := s.Settle(ctx, []store.Settlement{{Key: k, Token: token}}, errs); err != nil {
		return err
	}
	return errs[0]
}

// errHeld is the error of a client that does not wait.
var errHeld = errors.New("a key is held that no other goroutine uses")
