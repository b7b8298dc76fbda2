package sqlitestore

import (
	"container/heap"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

const (
	// fastPoll to slowPoll is how often the file is looked at for what other
	// processes did, while somebody waits: often after something happened, and
	// more and more seldom after that.
	fastPoll = time.Millisecond
	slowPoll = 5 * time.Millisecond
	// dormantPoll is the most seldom, when there are reserved places only: whoever
	// left them is busy with something else.
	dormantPoll = 50 * time.Millisecond
	// patience is how many looks without a find make the next ones rarer.
	patience = 50
)

const newWakes = "SELECT seq, token FROM @wake WHERE seq > ?1 ORDER BY seq"

// waitingFor is what a claim that got a place tells about its token.
type waitingFor struct {
	token   dibs.Token
	place   time.Duration
	dormant bool
	next    bool          // its turn comes with the next lease that ends
	left    time.Duration // until that is, at the latest
}

// waiting knows the tokens that wait in this process, and wakes them: those that
// this process grants to at once, those that others grant to by looking into the
// file's table of wakes, and those before whom a lease runs out when it does. It
// is for speed alone; a waiter that is not woken asks by itself.
//
// While nobody waits nothing is looked at.
type waiting struct {
	s *Store

	callbacks sync.RWMutex // guards watchers, and is held while they are called
	watchers  map[*func(dibs.Token)]struct{}

	mu      sync.Mutex
	tokens  map[dibs.Token]place
	active  int // how many of the tokens are not dormant
	alarms  alarms
	fresh   bool // something happened since the last look
	sweepAt time.Time
	started bool  // guarded by Store.mu
	looks   int64 // how often the file was looked at

	waiters chan struct{} // holds one element when tokens is not empty any more
	conn    *lite.Conn    // of the goroutine that looks
	wakes   *lite.Stmt
	seen    int64 // the last wake that was seen
}

// place is how a token waits.
type place struct {
	until   time.Time
	dormant bool
}

func (w *waiting) init(s *Store) {
	w.s = s
	w.tokens = map[dibs.Token]place{}
	w.watchers = map[*func(dibs.Token)]struct{}{}
	w.waiters = make(chan struct{}, 1)
}

// Notify implements dibs.Notifier.
func (s *Store) Notify(wake func(dibs.Token)) (stop func()) {
	w := &s.waiting
	key := &wake
	w.callbacks.Lock()
	w.watchers[key] = struct{}{}
	w.callbacks.Unlock()
	w.start()
	return func() {
		w.callbacks.Lock()
		defer w.callbacks.Unlock()
		delete(w.watchers, key)
	}
}

// has reports whether the token waits in this process.
func (w *waiting) has(t dibs.Token) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.tokens[t]
	return ok
}

// join adds tokens.
func (w *waiting) join(joins []waitingFor) {
	if len(joins) == 0 {
		return
	}
	now := time.Now()
	w.mu.Lock()
	for i := range joins {
		j := &joins[i]
		w.drop(j.token)
		w.tokens[j.token] = place{until: now.Add(j.place), dormant: j.dormant}
		if !j.dormant {
			w.active++
		}
		if j.next && j.left > 0 {
			heap.Push(&w.alarms, alarm{at: now.Add(j.left), token: j.token})
		}
	}
	w.fresh = true
	w.mu.Unlock()
	select {
	case w.waiters <- struct{}{}:
	default:
	}
}

// leave removes tokens.
func (w *waiting) leave(tokens []dibs.Token) {
	if len(tokens) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range tokens {
		w.drop(t)
	}
}

// drop removes one token and reports whether it waited. The caller holds mu.
func (w *waiting) drop(t dibs.Token) bool {
	p, ok := w.tokens[t]
	if ok && !p.dormant {
		w.active--
	}
	delete(w.tokens, t)
	return ok
}

// wake wakes those of the tokens that wait in this process. They wait no more
// until they have asked again.
func (w *waiting) wake(tokens []dibs.Token) {
	if len(tokens) == 0 {
		return
	}
	w.mu.Lock()
	var here []dibs.Token
	for _, t := range tokens {
		if w.drop(t) {
			here = append(here, t)
		}
	}
	w.fresh = w.fresh || len(here) > 0
	w.mu.Unlock()
	w.callbacks.RLock()
	defer w.callbacks.RUnlock()
	for _, t := range here {
		for wake := range w.watchers {
			(*wake)(t)
		}
	}
}

// start starts the goroutine that looks into the file.
func (w *waiting) start() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.s.closed || w.started {
		return
	}
	w.started = true
	w.s.background.Go(w.watch)
}

// watch looks into the file while somebody waits.
func (w *waiting) watch() {
	defer w.close()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-w.waiters:
		case <-w.s.closing:
			return
		}
		interval, idle := fastPoll, 0
		for {
			found, busy := w.look()
			if !busy {
				break
			}
			if idle++; found {
				interval, idle = fastPoll, 0
			} else if idle >= patience {
				interval, idle = min(2*interval, w.slowest()), 0
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

// look wakes those whose time has come. found says that something happened,
// busy that somebody still waits.
func (w *waiting) look() (found, busy bool) {
	w.mu.Lock()
	w.looks++
	due := w.alarms.due(time.Now())
	found, w.fresh = w.fresh, false
	if len(w.alarms) > 2*len(w.tokens)+1000 {
		w.alarms = nil // of those who left or asked again; they look for themselves
	}
	w.sweep()
	busy = len(w.tokens) > 0
	w.mu.Unlock()
	if busy {
		due = append(due, w.read()...)
	}
	w.wake(due)
	return found || len(due) > 0, busy
}

// read returns the tokens that the file says should ask again.
func (w *waiting) read() []dibs.Token {
	if w.conn == nil && w.connect() != nil {
		return nil // only a hint is lost, and the calls tell what is wrong
	}
	var tokens []dibs.Token
	w.wakes.BindInt(1, w.seen)
	defer w.wakes.Reset()
	for {
		row, err := w.wakes.Step()
		if err != nil || !row {
			return tokens
		}
		w.seen = w.wakes.Int(0)
		var t dibs.Token
		copy(t[:], w.wakes.Bytes(1))
		tokens = append(tokens, t)
	}
}

func (w *waiting) connect() (err error) {
	if w.conn, err = lite.Open(w.s.full, lite.ReadWrite); err != nil {
		w.conn = nil
		return err
	}
	if w.wakes, err = w.conn.Prepare(w.s.tables.sql(newWakes)); err != nil {
		w.close()
	}
	return err
}

// sweep drops, now and then, the tokens whose places have run out. The caller
// holds mu.
func (w *waiting) sweep() {
	now := time.Now()
	if now.Before(w.sweepAt) {
		return
	}
	w.sweepAt = now.Add(500 * time.Millisecond)
	for t, p := range w.tokens {
		if now.After(p.until) {
			w.drop(t)
		}
	}
}

func (w *waiting) slowest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active == 0 && len(w.alarms) == 0 {
		return dormantPoll
	}
	return slowPoll
}

// close closes the goroutine's connection.
func (w *waiting) close() {
	if w.conn != nil {
		// It has only read, so there is nothing to lose.
		_ = w.conn.Close()
		w.conn = nil
	}
}

// alarm is when a token should ask again although nobody may have told it.
type alarm struct {
	at    time.Time
	token dibs.Token
}

// alarms is a heap, the first alarm first.
type alarms []alarm

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a alarms) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *alarms) Push(x any)        { *a = append(*a, x.(alarm)) }
func (a *alarms) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// due takes out the alarms whose time has come.
func (a *alarms) due(now time.Time) []dibs.Token {
	var tokens []dibs.Token
	for len(*a) > 0 && !(*a)[0].at.After(now) {
		tokens = append(tokens, heap.Pop(a).(alarm).token)
	}
	return tokens
}
