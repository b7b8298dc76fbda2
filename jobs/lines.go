package jobs

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// lines are the jobs that this process has put off, by key. For each key somebody
// watches how many places come before the first of them.
type lines struct {
	mutex *Mutex
	life  context.Context // ends with Close

	mu      sync.Mutex
	byKey   map[dibs.Key]*line
	byToken map[dibs.Token]*away // those in a line, and those that were called
	called  []*away              // those that were made runnable, in that order
	waiting int                  // how many are in a line
	coming  int                  // how many were called a moment ago and are not back
	hungry  []*line              // those whose first would be near enough, had it a seat
}

// line is those of one key.
type line struct {
	away []*away // its watcher's alone; the first to come first

	// Under the lock.
	fresh  []*away            // put off since
	change context.CancelFunc // ends what the watcher waits for
	hungry bool               // it is among the hungry
}

func (x *line) is(y *line) bool { return x == y }

// away is a job that was put off. But for the attempt it is under the lock.
type away struct {
	attempt
	woken  time.Time // when it was made runnable; zero before
	coming bool      // that is only a moment ago
	gone   bool      // it came back
}

const (
	// maxAway bounds the jobs that are looked after; all others come back by
	// themselves.
	maxAway = 1 << 16
	// calledMemory is how long it is remembered that a job was made runnable.
	calledMemory = time.Minute
	// comes is for how long a seat is kept for a job that was made runnable. Another
	// process may have it.
	comes = time.Second
	// wakePatience is how long the queue is asked to make a job runnable.
	wakePatience = 10 * time.Second
)

func (l *lines) init(m *Mutex) {
	l.mutex = m
	l.byKey = map[dibs.Key]*line{}
	l.byToken = map[dibs.Token]*away{}
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
	w := l.byToken[a.place.Token]
	if w == nil {
		a.tries = max(a.tries, 1)
		return
	}
	a.placed = true
	a.tries = max(a.tries, w.tries+1)
	if a.since.IsZero() {
		a.since = w.since
	}
	if a.called = !w.woken.IsZero(); a.called {
		l.mutex.paths.add(time.Since(w.woken))
	}
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
		l.coming--
	}
}

// add looks after a job that is put off.
func (l *lines) add(a *attempt) {
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
		return
	}
	w := &away{attempt: *a}
	l.byToken[w.place.Token] = w
	l.waiting++
	key := l.byKey[w.place.Key]
	if key == nil {
		key = &line{change: func() {}}
		l.byKey[w.place.Key] = key
		go l.watch(w.place.Key, key)
	}
	key.fresh = append(key.fresh, w)
	key.change()
}

// watch makes the jobs of one key runnable, one after the other, until there are
// none.
func (l *lines) watch(key dibs.Key, line *line) {
	m := l.mutex
	for l.life.Err() == nil {
		fresh, near, ctx, end := l.next(key, line)
		if ctx == nil {
			return
		}
		var err error
		for i, w := range fresh {
			if err = l.place(ctx, line, w); err != nil {
				l.again(line, fresh[i:])
				break
			}
		}
		if err == nil {
			if err = m.client.Near(ctx, line.away[0].place, near-1, m.sameKey()); err == nil {
				l.call(line.away[0])
				line.away = line.away[1:]
			}
		}
		changed := ctx.Err() != nil
		end()
		if err != nil && !changed {
			m.pause(l.life, time.Second) // the store is away
		}
	}
}

// again puts jobs back that have no place in their line yet.
func (l *lines) again(line *line, fresh []*away) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line.fresh = append(slices.Clone(fresh), line.fresh...)
}

// next returns those that were put off since, how near to its turn the first is to be
// made runnable, and a context that ends when either changes; none if nobody is left.
func (l *lines) next(key dibs.Key, line *line) (fresh []*away, near int, ctx context.Context, end context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	gone := func(w *away) bool { return w.gone }
	line.away = slices.DeleteFunc(line.away, gone)
	fresh, line.fresh = slices.DeleteFunc(line.fresh, gone), nil
	if len(line.away)+len(fresh) == 0 {
		delete(l.byKey, key)
		if line.hungry {
			l.hungry = slices.DeleteFunc(l.hungry, line.is)
		}
		return nil, 0, nil, nil
	}
	ctx, end = context.WithCancel(l.life)
	line.change = end
	switch {
	case len(l.mutex.seats)+l.coming < cap(l.mutex.seats):
		near = l.mutex.near()
	case !line.hungry:
		// There is no seat for it: it comes when its turn has come.
		line.hungry = true
		l.hungry = append(l.hungry, line)
	}
	return fresh, near, ctx, end
}

// seat tells one of those who found no seat that there may be one now.
func (l *lines) seat() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.hungry) > 0 {
		line := l.hungry[0]
		l.hungry = l.hungry[1:]
		line.hungry = false
		line.change()
	}
}

// place puts a job where it belongs in its line: mostly at the end. Places of a key
// keep their order, so that looking at both says which of two jobs comes first.
func (l *lines) place(ctx context.Context, line *line, w *away) error {
	low, high := 0, len(line.away)
	for mid := high - 1; low < high; mid = (low + high) / 2 {
		before, err := l.before(ctx, line.away[mid], w)
		if err != nil {
			return err
		}
		if before {
			low = mid + 1
		} else {
			high = mid
		}
	}
	line.away = slices.Insert(line.away, low, w)
	return nil
}

// before reports whether v comes before w. Time goes by between two looks, and the
// numbers fall; so w counts as what it is beside v before and after.
func (l *lines) before(ctx context.Context, v, w *away) (bool, error) {
	look := func(x *away) (dibs.Standing, error) {
		return l.mutex.client.Standing(ctx, x.place, l.mutex.sameKey())
	}
	v1, err := look(v)
	for range maxLooks {
		if err != nil {
			return false, err
		}
		ws, err := look(w)
		if err != nil {
			return false, err
		}
		v2, err := look(v)
		switch {
		case err != nil:
			return false, err
		case !v2.Waits || !ws.Waits:
			return !v2.Waits, nil
		case ws.Ahead < v2.Ahead:
			return false, nil
		case ws.Ahead > v1.Ahead:
			return true, nil
		}
		v1 = v2
	}
	return true, nil
}

// maxLooks is how often two places are looked at that are too near to one another to
// be told apart while the queue moves.
const maxLooks = 8

// sameKey are the options with which the key is looked at.
func (m *Mutex) sameKey() *dibs.AcquireOptions {
	return &dibs.AcquireOptions{Permits: m.options.Permits}
}

// call makes a job runnable.
func (l *lines) call(w *away) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.gone {
		return
	}
	w.woken, w.coming = time.Now(), true
	l.waiting--
	l.coming++
	l.called = append(l.called, w)
	time.AfterFunc(comes, func() {
		l.mu.Lock()
		l.came(w)
		l.mu.Unlock()
		l.seat()
	})
	go l.wake(w)
}

// wake asks the queue to make a job runnable, until it has noted that the job was
// put off.
func (l *lines) wake(w *away) {
	m := l.mutex
	ctx, cancel := context.WithTimeout(l.life, wakePatience)
	defer cancel()
	for pause := 2 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 100*time.Millisecond) {
		l.mu.Lock()
		gone := w.gone
		l.mu.Unlock()
		if gone {
			return
		}
		done, err := w.job.Wake(ctx)
		if err != nil && ctx.Err() == nil {
			m.options.Logger.WarnContext(ctx, "dibs: the queue did not make a job runnable whose turn is near; it comes back later", "kind", w.job.Kind, "job", w.job.ID, "error", err)
			return
		}
		if done {
			return
		}
		m.pause(ctx, pause)
	}
}

// pause waits.
func (m *Mutex) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
