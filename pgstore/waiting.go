package pgstore

import (
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
	"github.com/dibs-go/dibs/internal/engine"
)

// waiting tells those who wait in this process that they should ask again, or that
// they hold the key. It hears of that by listening, or else by polling. Neither is
// begun before somebody waits.
type waiting struct {
	s         *Store
	listeners backend.Listeners
	process   atomic.Int64 // the number under which this process is told; 0 while it does not listen

	mu      sync.Mutex
	started bool
	deaf    []dibs.Token // who waits and could not be told where to

	polled map[dibs.Token]*place // who waits, where we poll
	more   chan struct{}         // has an element when polled has somebody new
}

// place is how a token waits.
type place struct {
	key   string
	until time.Time
}

// maxDeaf is how many are told that they are listened for.
const maxDeaf = 4096

func newWaiting(s *Store) *waiting {
	return &waiting{s: s, polled: map[dibs.Token]*place{}, more: make(chan struct{}, 1)}
}

// address returns under what number this process is told, or 0: nobody takes that, or it
// does not listen.
func (w *waiting) address() int64 {
	if !w.listeners.Any() {
		return 0
	}
	return w.process.Load()
}

// heard sees to it that those who wait are told when their turn has come. They
// claimed from that process.
func (w *waiting) heard(call *engine.Call, claims []dibs.Claim, answers []dibs.Answer, process int64) {
	polls := w.polls()
	if !polls && process != 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	added, news := false, false
	for _, i := range call.Valid() {
		c, a := &claims[i], &answers[i]
		switch {
		case c.Mode != dibs.Queue || a.State != dibs.Held:
			if len(w.polled) > 0 {
				delete(w.polled, c.Token)
			}
			continue
		case polls:
			// All who wait ask again, and that alone is nothing new: else the looks would
			// never become rarer.
			news = news || w.polled[c.Token] == nil
			w.polled[c.Token] = &place{key: call.Keys[i], until: time.Now().Add(c.Stay)}
		case len(w.deaf) < maxDeaf: // hints: the others ask soon anyway
			w.deaf = append(w.deaf, c.Token)
		}
		added = true
	}
	if !added || w.s.life.Err() != nil {
		return
	}
	if !w.started {
		w.started = true
		if polls {
			w.s.background.Go(w.poll)
		} else {
			w.s.background.Go(w.listen)
		}
	}
	if polls {
		if news {
			select {
			case w.more <- struct{}{}:
			default:
			}
		}
	} else if w.process.Load() != 0 {
		w.s.background.Go(w.opened)
	}
}

// polls reports whether nobody can listen.
func (w *waiting) polls() bool {
	switch w.s.options.Wake {
	case WakeListen:
		return false
	case WakePoll:
		return true
	}
	return w.s.pooled.Load()
}

// left forgets those who gave up their places.
func (w *waiting) left(settlements []dibs.Settlement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.polled) == 0 {
		return
	}
	for i := range settlements {
		delete(w.polled, settlements[i].Token)
	}
}

// opened tells those who wait that they are listened for, so that they ask and say
// where from.
func (w *waiting) opened() {
	w.mu.Lock()
	deaf := w.deaf
	w.deaf = nil
	w.mu.Unlock()
	w.wake(deaf...)
}

// wake has tokens ask again.
func (w *waiting) wake(tokens ...dibs.Token) {
	for _, t := range tokens {
		w.listeners.Wake(t, dibs.Answer{})
	}
}

// hear takes a message: tokens, each of which should ask again, or has its grant's
// fence and attempt behind it.
func (w *waiting) hear(message string) {
	for word := range strings.FieldsSeq(message) {
		name, grant, told := strings.Cut(word, ":")
		var t dibs.Token
		if n, err := hex.Decode(t[:], []byte(name[:min(len(name), 2*len(t))])); err != nil || n != len(t) {
			continue // not one of ours
		}
		var a dibs.Answer
		if told {
			fence, attempt, _ := strings.Cut(grant, ":")
			f, err1 := strconv.ParseUint(fence, 10, 64)
			n, err2 := strconv.Atoi(attempt)
			if err1 != nil || err2 != nil {
				continue
			}
			a = dibs.Answer{State: dibs.Granted, Fence: f, Attempt: n}
		}
		w.listeners.Wake(t, a)
	}
}

// Notify implements dibs.Notifier. Where the store polls, nobody is told more than that it
// should ask.
func (s *Store) Notify(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	return s.waiting.listeners.Notify(wake)
}
