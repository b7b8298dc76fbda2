package memstore

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs"
)

// listeners are those who want to know which tokens should ask again. The list
// is replaced whole, so that waking takes no lock.
type listeners struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*listener]
}

type listener struct{ wake func(dibs.Token, dibs.Answer) }

// Notify implements dibs.Notifier. The store tells no grants, because asking for one takes
// less than a microsecond. wake is called on whatever goroutine freed
// a key, with no lock held; it may use the store.
func (s *Store) Notify(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	l := &listener{wake}
	s.listeners.replace(func(list []*listener) []*listener { return append(list, l) })
	return func() {
		s.listeners.replace(func(list []*listener) []*listener {
			return slices.DeleteFunc(list, func(other *listener) bool { return other == l })
		})
	}
}

// replace replaces the list by what edit makes of a copy of it.
func (l *listeners) replace(edit func([]*listener) []*listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := edit(slices.Clone(l.all()))
	l.list.Store(&list)
}

func (l *listeners) all() []*listener {
	if list := l.list.Load(); list != nil {
		return *list
	}
	return nil
}

// wake notes that a token should ask again; unlock tells it.
func (sh *shard) wake(t dibs.Token) { sh.woken = append(sh.woken, t) }

// unlock ends a step, and wakes those that it concerns, except the one who
// takes it.
func (sh *shard) unlock(self dibs.Token) {
	if len(sh.woken) == 0 {
		sh.mu.Unlock()
		return
	}
	sh.unlockAndWake(self)
}

func (sh *shard) unlockAndWake(self dibs.Token) {
	// A hand-over wakes one, and that one is copied without an allocation.
	var few [8]dibs.Token
	woken := few[:0]
	if len(sh.woken) <= len(few) {
		woken = append(woken, sh.woken...)
		sh.woken = sh.woken[:0]
	} else {
		woken, sh.woken = sh.woken, nil
	}
	sh.mu.Unlock()
	for _, l := range sh.store.listeners.all() {
		for _, t := range woken {
			if t != self {
				l.wake(t, dibs.Answer{})
			}
		}
	}
}
