package sqlitestore

import (
	"sync"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

const (
	// While tokens wait in this process, it reads the file for wakes from other
	// processes: after fastPoll at first, then more and more slowly up to slowPoll.
	fastPoll = time.Millisecond
	slowPoll = 5 * time.Millisecond
)

const newWakes = "SELECT seq, token FROM @wake WHERE seq > ?1 ORDER BY seq"

// waiter is a token with a new place, and how long the place lasts.
type waiter struct {
	token    store.Token
	placeTTL time.Duration
}

// waiting are the tokens that wait in this process. It wakes them, directly or by reading
// the table wake. It only saves time, because a waiter that is not woken asks by itself,
// even when the lease before it has run out. Without waiters it reads nothing.
type waiting struct {
	s *Store

	listeners storekit.Listeners

	mu      sync.Mutex
	tokens  map[store.Token]time.Time // when their places end
	started bool                      // guarded by Store.mu
	looks   int                       // how often the file was read

	waiters chan struct{} // gets an element when tokens is no longer empty
	conn    *lite.Conn    // of the reading goroutine
	wakes   *lite.Stmt
	seen    int64 // the last wake that was read
}

func (w *waiting) init(s *Store) {
	w.s = s
	w.tokens = map[store.Token]time.Time{}
	w.waiters = make(chan struct{}, 1)
}

// Notify implements store.Notifier. The store pushes no grants, because asking costs only
// a shared transaction.
func (s *Store) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	w := &s.waiting
	stop = w.listeners.Notify(wake)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && !w.started {
		w.started = true
		s.background.Go(w.watch)
	}
	return stop
}

// has reports whether the token waits in this process.
func (w *waiting) has(t store.Token) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.tokens[t]
	return ok
}

func (w *waiting) join(joins []waiter) {
	if len(joins) == 0 {
		return
	}
	now := time.Now()
	w.mu.Lock()
	for _, j := range joins {
		w.tokens[j.token] = now.Add(j.placeTTL)
	}
	w.mu.Unlock()
	select {
	case w.waiters <- struct{}{}:
	default:
	}
}

func (w *waiting) leave(tokens []store.Token) {
	if len(tokens) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range tokens {
		delete(w.tokens, t)
	}
}

// wake wakes the tokens that wait in this process, and reports whether there were any.
func (w *waiting) wake(tokens []store.Token) (found bool) {
	if len(tokens) == 0 {
		return false
	}
	for _, t := range tokens {
		if !w.has(t) {
			continue
		}
		found = true
		w.listeners.Wake(t, store.Answer{})
	}
	return found
}

// watch reads wakes while tokens wait.
func (w *waiting) watch() {
	defer func() {
		if w.conn != nil {
			_ = w.conn.Close() // it has only read
		}
	}()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-w.waiters:
		case <-w.s.closing:
			return
		}
		for interval := fastPoll; w.sweep(); interval = min(interval+interval/50, slowPoll) {
			if w.wake(w.read()) {
				interval = fastPoll
			}
			timer.Reset(interval)
			select {
			case <-timer.C:
			case <-w.s.closing:
				return
			}
		}
	}
}

// sweep removes tokens whose places have ended, and reports whether any token is left.
func (w *waiting) sweep() bool {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	if w.looks%100 == 0 {
		for t, until := range w.tokens {
			if now.After(until) {
				delete(w.tokens, t)
			}
		}
	}
	return len(w.tokens) > 0
}

// read returns tokens from the table wake. Errors are ignored, because wakes are hints
// and calls report faults of the file.
func (w *waiting) read() (tokens []store.Token) {
	if w.wakes == nil && w.connect() != nil {
		return nil
	}
	_ = w.wakes.Each(func(row *lite.Stmt) bool {
		w.seen = row.Int(0)
		tokens = append(tokens, store.Token(row.Bytes(1)))
		return true
	}, w.seen)
	return tokens
}

func (w *waiting) connect() (err error) {
	if w.conn == nil {
		if w.conn, err = lite.Open(w.s.names.full, lite.ReadWrite); err != nil {
			return err
		}
	}
	w.wakes, err = w.conn.Prepare(w.s.tables.sql(newWakes))
	return err
}
