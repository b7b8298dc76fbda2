package jobs

import (
	"context"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// watch makes the jobs of one key runnable, one after the other, until there are
// none.
func (l *lines) watch(key dibs.Key, of *line) {
	m := l.mutex
	for l.life.Err() == nil {
		those, near, ctx, end := l.next(key, of)
		if ctx == nil {
			return
		}
		due, err := l.due(ctx, of, those, near)
		for _, w := range due {
			l.call(w)
		}
		changed := ctx.Err() != nil
		end()
		if err != nil && !changed {
			m.pause(l.life, time.Second) // the store is away
		}
	}
}

// next returns the jobs in front of a line in their order, how near to its turn one of
// them is to be made runnable, and a context that ends when it is to be asked again; none
// if nobody is left.
func (l *lines) next(key dibs.Key, of *line) (those []*away, near int, ctx context.Context, end context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.away = slices.DeleteFunc(of.away, (*away).over)
	of.sort()
	if len(of.away) == 0 {
		delete(l.byKey, key)
		l.forget(key)
		of.sated()
		return nil, 0, nil, nil
	}
	ctx, of.change = context.WithCancel(l.life)
	those = of.some(0)
	r := those[0].room
	of.near = l.reach(key, r)
	switch {
	case r.free() < 1:
		r.starve(of)
	default:
		of.sated()
		if !of.isNear(l.gone(key)) {
			r.tell(1) // there is a seat, and none here to take it
		}
	}
	return those, of.near, ctx, of.change
}

// rethinks is how long a watcher waits before it reckons anew how near is near.
const rethinks = 10 * time.Second

// due waits until a job of a line is near its turn, mostly the first, and returns it,
// and those behind it that are as near; none where there is something else to do first.
func (l *lines) due(ctx context.Context, of *line, those []*away, near int) ([]*away, error) {
	m, first := l.mutex, those[0]
	if due := l.known(those, near, false); len(due) > 0 {
		return due, nil
	}
	waiting, cancel := context.WithTimeout(ctx, rethinks)
	defer cancel()
	passed, idle := false, false
	l.asks(first)
	place, err := m.client.NearAmong(waiting, first.place, places(those[1:]), dibs.Pace{Near: near - 1, Each: m.takes()}, func(s dibs.Standing) bool {
		isNear := l.isNear(first, s, near)
		passed = !isNear && l.passed(those, near)
		idle = l.lies(of, first.place.Key, s.Idle) && !isNear && !passed
		return isNear || passed || idle
	}, m.sameKey())
	switch {
	case err == nil && passed:
		_, err := l.compare(those[:min(len(those), inFront)])
		return nil, err
	case err == nil && idle:
		return l.search(of, those)
	case err == nil && place != first.place:
		// A hint may be one too many, and who is called too early is on its way when it
		// could be known to be gone.
		i := slices.IndexFunc(those, func(w *away) bool { return w.place == place })
		return l.asNear(those[i])
	case err == nil:
		return those[:max(1, len(l.known(those, near, true)))], nil
	case ctx.Err() == nil && waiting.Err() != nil:
		return nil, nil
	}
	return nil, err
}

// known returns those in front that are that near to their turn by what is known of how
// far the line has moved: just now, or a moment ago. Looks take longer than jobs while the
// store has much to do. All are from one pool, and there are no more than that has seats for;
// or one, for which another goes, while not too many are on their way.
func (l *lines) known(those []*away, near int, now bool) []*away {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := those[0].room
	n, most := 0, r.free()
	if most < 1 && r.mayCall() {
		most = 1
	}
	for n < min(most, len(those)) && those[n].room == r && those[n].at-l.gone(those[n].place.Key) < near && (now || l.moving(those[n].place.Key)) {
		n++
	}
	return those[:n]
}

// asNear returns one that is near enough to its turn, without waiting for it.
func (l *lines) asNear(w *away) ([]*away, error) {
	l.mu.Lock()
	near := l.reach(w.place.Key, w.room)
	l.mu.Unlock()
	standings, err := l.look([]*away{w})
	if err != nil || standings[0].Waits && !l.isNear(w, standings[0], near) {
		return nil, err
	}
	return []*away{w}, nil
}

// isNear reports whether a job that stands so is that near to its turn. One whose key
// lies idle is not, unless that is only a moment between two jobs.
func (l *lines) isNear(w *away, s dibs.Standing, near int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shows(w.place.Key, &w.position, s.Ahead)
	return s.Ahead < near && (!s.Idle || l.moving(w.place.Key))
}

// look tells how jobs of a line stand now: with most stores, at one moment.
func (l *lines) look(those []*away) ([]dibs.Standing, error) {
	l.asks(those...)
	return l.mutex.client.Standings(l.life, places(those), l.mutex.sameKey())
}

func places(those []*away) []dibs.Place {
	all := make([]dibs.Place, len(those))
	for i, w := range those {
		all[i] = w.place
	}
	return all
}

// sameKey are the options with which the key is looked at.
func (m *Mutex) sameKey() *dibs.AcquireOptions {
	return &dibs.AcquireOptions{Permits: m.options.Permits}
}
