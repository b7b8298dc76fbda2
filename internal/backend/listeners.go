package backend

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs"
)

// Listeners are the clients of one process that want to know of their waiters' turns. The
// zero value has none. The list is replaced whole, so that telling takes no lock.
type Listeners struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*listener]
}

type listener struct{ wake func(dibs.Token, dibs.Answer) }

// Notify adds a listener, as dibs.Notifier says. stop takes it away.
func (l *Listeners) Notify(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	added := &listener{wake}
	l.replace(func(list []*listener) []*listener { return append(list, added) })
	return func() {
		l.replace(func(list []*listener) []*listener {
			return slices.DeleteFunc(list, func(other *listener) bool { return other == added })
		})
	}
}

// Any reports whether anybody listens.
func (l *Listeners) Any() bool { return len(l.all()) > 0 }

// Tell tells all listeners of a token: its grant, or with the zero Answer that it should
// ask. The caller has no lock that a listener's use of the store would need.
func (l *Listeners) Tell(t dibs.Token, a dibs.Answer) {
	for _, other := range l.all() {
		other.wake(t, a)
	}
}

// replace replaces the list by what edit makes of a copy of it.
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
