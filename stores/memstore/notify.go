package memstore

import "github.com/dibs-go/dibs/store"

// Notify implements store.Notifier. The store pushes no grants. It calls wake on the goroutine
// that freed a key, without a lock, so wake may use the store.
func (s *Store) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	return s.listeners.Notify(wake)
}

// unlock ends a step and wakes the tokens that should ask, except self, the caller's own.
func (sh *shard) unlock(self store.Token) {
	if len(sh.woken) == 0 {
		sh.mu.Unlock()
		return
	}
	sh.unlockAndWake(self)
}

func (sh *shard) unlockAndWake(self store.Token) {
	// Most steps wake one, which is copied without an allocation.
	var few [8]store.Token
	woken := few[:0]
	if len(sh.woken) <= len(few) {
		woken = append(woken, sh.woken...)
		sh.woken = sh.woken[:0]
	} else {
		woken, sh.woken = sh.woken, nil
	}
	sh.mu.Unlock()
	for _, t := range woken {
		if t != self {
			sh.store.listeners.Wake(t, store.Answer{})
		}
	}
}
