package pgstore

import (
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs/store"
)

// maxUnconfirmed bounds how many waiters are woken once the subscriber listens.
const maxUnconfirmed = 4096

// subscriber is the connection on which a store listens for turns of its waiters. It is
// opened when a client waits for the first time.
type subscriber struct {
	s       *Store
	process atomic.Int64 // the number that grants are pushed to; 0 while it does not listen

	mu          sync.Mutex
	started     bool
	unconfirmed []store.Token // waiters that joined while it did not listen
}

// listens reports whether waiters learn of their turns by listening, not by polling.
func (s *Store) listens() bool {
	return s.options.Wake == WakeListen || s.options.Wake == WakeAuto && !s.pooled.Load()
}

// unreached starts to listen, and has the tokens ask again once that works.
func (u *subscriber) unreached(tokens []store.Token) {
	u.mu.Lock()
	// A token too many is woken later: its client asks again anyway.
	room := max(maxUnconfirmed-len(u.unconfirmed), 0)
	u.unconfirmed = append(u.unconfirmed, tokens[:min(len(tokens), room)]...)
	started := u.started
	u.started = true
	u.mu.Unlock()
	if !started {
		u.s.server.Go(u.listen)
	}
	if u.process.Load() != 0 {
		u.confirm()
	}
}

// confirm has the unconfirmed waiters ask again. Their claims then carry the process that
// their grants are pushed to.
func (u *subscriber) confirm() {
	u.mu.Lock()
	tokens := u.unconfirmed
	u.unconfirmed = nil
	u.mu.Unlock()
	for _, t := range tokens {
		u.s.server.Listeners.Wake(t, store.Answer{})
	}
}

// receive reads a message: tokens. A token that was granted the key has the fence and the
// attempt behind it. The others should ask again.
func (u *subscriber) receive(message string) {
	for word := range strings.FieldsSeq(message) {
		name, grant, granted := strings.Cut(word, ":")
		var t store.Token
		if n, err := hex.Decode(t[:], []byte(name[:min(len(name), 2*len(t))])); err != nil || n != len(t) {
			continue // another program's message
		}
		var a store.Answer
		if granted {
			fence, attempt, _ := strings.Cut(grant, ":")
			f, err1 := strconv.ParseUint(fence, 10, 64)
			n, err2 := strconv.Atoi(attempt)
			if err1 != nil || err2 != nil {
				continue
			}
			a = store.Answer{State: store.Granted, Fence: f, Attempt: n}
		}
		u.s.server.Listeners.Wake(t, a)
	}
}
