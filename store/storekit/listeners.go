package storekit

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs/store"
)

// Listeners are the clients of one process whose waiters a store wakes. The zero value has
// none. Changes replace the whole list, so that Wake needs no lock.
type Listeners struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*listener]
}

type listener struct {
	wake func(store.Token, store.Answer)
}

// Notify adds a listener, as in store.Notifier. stop removes it.
func (l *Listeners) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	added := &listener{wake}
	l.replace(func(list []*listener) []*listener { return append(list, added) })
	return func() {
		l.replace(func(list []*listener) []*listener {
			return slices.DeleteFunc(list, func(other *listener) bool { return other == added })
		})
	}
}

// Any reports whether there is a listener.
func (l *Listeners) Any() bool { return len(l.all()) > 0 }

// Wake calls all listeners with a token and its grant, or with the zero Answer if the token
// should ask. The caller must hold no lock of its store, because a listener may use it.
func (l *Listeners) Wake(t store.Token, a store.Answer) {
	for _, other := range l.all() {
		other.wake(t, a)
	}
}

// replace replaces the list by an edited copy.
func (l *Listeners) replace(edit func([]*listener) []*listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := edit(slices.Clone(l.all()))
	l.list.Store(&list)
}

func (l *Listeners) all() []*listener {
	if list := l.list.Load(); list != nil {
		return *list
	}
	return nil
}
