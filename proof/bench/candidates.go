package main

import (
	"context"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
)

// The names of what is measured on more than one server.
const (
	// ours and floorName are the names of what is measured on every server.
	ours      = "dibs"
	floorName = "raw floor"
)

// candidates are a server and all clients that are measured on it.
type candidates struct {
	scope   *servertest.Scope
	lockers map[string][]locker // by name, one for each process that there would be
	close   []func()
}

// opener starts a server and its candidates.
type opener func(context.Context) (*candidates, error)

// newCandidates returns an empty set of candidates.
func newCandidates() *candidates {
	return &candidates{scope: servertest.NewScope(), lockers: map[string][]locker{}}
}

// enter adds a dibs client of its own on a store.
func (b *candidates) enter(store dibs.Store, closeStore func() error) error {
	b.close = append(b.close, func() { _ = closeStore() })
	client, err := dibs.New(store, &dibs.Options{TTL: lockTTL})
	if err != nil {
		return err
	}
	b.close = append(b.close, func() { _ = client.Close() })
	b.lockers[ours] = append(b.lockers[ours], dibsLocker{client})
	return nil
}

// end closes everything, the last one opened first.
func (b *candidates) end() {
	for i := len(b.close) - 1; i >= 0; i-- {
		b.close[i]()
	}
	b.scope.Close()
}
