package jobs

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// lines are the jobs that this process has put off, by key, and the seats of those
// that wait in its workers. For each key somebody watches how many places come before
// the first of them.
type lines struct {
	mutex   *Mutex
	life    context.Context // ends with Close
	workers sync.WaitGroup  // who watches, and who puts jobs in their places
	wakers  sync.WaitGroup  // who makes a job runnable

	mu      sync.Mutex
	byKey   map[dibs.Key]*line
	byToken map[dibs.Token]*away // those in a line, and those that were called
	called  []*away              // those that were made runnable, in that order
	waiting int                  // how many are in a line
	rooms   map[Pool]*room       // and in them those that wait in a worker
	moves   map[dibs.Key]progress
	floor   int // as many have gone, at most, of keys that were forgotten
}

// line is those of one key. It is under the lock.
type line struct {
	away   []*away            // by their positions
	near   int                // how near to its turn one is to be made runnable
	change context.CancelFunc // ends what the watcher waits for
	hungry *room              // whose hungry it is among
	lull   lull
}

// away is a job that was put off. What can change is under the lock.
type away struct {
	attempt
	position
	woken  time.Time // when it was made runnable; zero before
	coming bool      // that is only a moment ago
	gone   bool      // it came back
}

// over reports whether nobody is to make the job runnable any more. The caller has the
// lock.
func (w *away) over() bool { return w.gone || !w.woken.IsZero() }

const (
	// maxAway bounds the jobs that are looked after; all others come back by
	// themselves.
	maxAway = 1 << 16
	// calledMemory is how long it is remembered that a job was made runnable.
	calledMemory = time.Minute
)

func (l *lines) init(m *Mutex) {
	l.mutex = m
	l.byKey = map[dibs.Key]*line{}
	l.byToken = map[dibs.Token]*away{}
	l.moves = map[dibs.Key]progress{}
	l.rooms = map[Pool]*room{}
	l.life = m.life
}

func (l *lines) away() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}

// back notes that a worker of this process has the job again, and tells the attempt
// what is remembered of it.
func (l *lines) back(a *attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.room = l.room(a.job.Pool)
	w := l.byToken[a.place.Token]
	if w == nil {
		a.tries = max(a.tries, 1)
		return
	}
	a.placed, a.stood = true, w.stood
	a.tries = max(a.tries, w.tries+1)
	if a.since.IsZero() {
		a.since = w.since
	}
	a.called, a.stirred = w.woken, w.stirred
	l.remove(w)
}

// remove forgets a job. The caller has the lock.
func (l *lines) remove(w *away) {
	delete(l.byToken, w.place.Token)
	w.gone = true
	if w.woken.IsZero() {
		l.waiting--
	}
	l.came(w)
}

// came notes that no seat is to be kept for a job any more. The caller has the lock.
func (l *lines) came(w *away) {
	if w.coming {
		w.coming = false
		w.room.coming--
	}
}

// add looks after a job that is put off. It reports false after Close, when nobody does.
func (l *lines) add(a *attempt, at int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for n < len(l.called) && time.Since(l.called[n].woken) > calledMemory {
		if w := l.called[n]; !w.gone {
			l.remove(w)
		}
		n++
	}
	l.called = slices.Delete(l.called, 0, n)
	if old := l.byToken[a.place.Token]; old != nil {
		l.remove(old)
	}
	if len(l.byToken) >= maxAway || l.life.Err() != nil {
		return l.life.Err() == nil
	}
	w := &away{attempt: *a, position: position{at: at}}
	l.byToken[w.place.Token] = w
	l.waiting++
	of := l.byKey[w.place.Key]
	if of == nil {
		of = &line{change: func() {}, lull: lull{stirred: a.stirred}}
		l.byKey[w.place.Key] = of
		l.begin(w.place.Key)
		l.workers.Go(func() { l.watch(w.place.Key, of) })
	}
	of.add(w)
	return true
}
