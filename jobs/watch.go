package jobs

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// placedAtOnce is how many jobs are put in their places before it is looked again
// whether the first is near its turn.
const placedAtOnce = 4

// watch makes the jobs of one key runnable, one after the other, until there are
// none.
func (l *lines) watch(key dibs.Key, of *line) {
	m := l.mutex
	for l.life.Err() == nil {
		fresh, near, ctx, end := l.next(key, of)
		if ctx == nil {
			return
		}
		var err error
		for i, w := range fresh {
			if err = l.place(of, w); err != nil {
				l.again(of, fresh[i:])
				break
			}
		}
		if err == nil {
			var due *away
			if due, err = l.due(ctx, of, near); due != nil {
				l.call(due)
				of.away = slices.DeleteFunc(of.away, func(w *away) bool { return w == due })
			}
		}
		changed := ctx.Err() != nil
		end()
		if err != nil && !changed {
			m.pause(l.life, time.Second) // the store is away
		}
	}
}

// lookAround is how long a line waits for its first job before it looks at the others.
const lookAround = 2 * time.Second

// due waits until a job of a line is near its turn, mostly the first, and returns it;
// nil where there is something else to do first. If there are more to be put in their
// places it only looks.
func (l *lines) due(ctx context.Context, of *line, near int) (*away, error) {
	m, first := l.mutex, of.away[0]
	if ctx.Err() != nil {
		s, err := m.client.Standing(l.life, first.place, m.sameKey())
		if err == nil && (!s.Waits || s.Ahead < near && !s.Idle) {
			return first, nil
		}
		return nil, err
	}
	others := make([]dibs.Place, len(of.away)-1)
	for i, w := range of.away[1:] {
		others[i] = w.place
	}
	waiting, cancel := context.WithTimeout(ctx, lookAround)
	defer cancel()
	place, err := m.client.NearAmong(waiting, first.place, others, near-1, m.sameKey())
	switch {
	case err == nil:
		i := slices.IndexFunc(of.away, func(w *away) bool { return w.place == place })
		return of.away[i], nil
	case ctx.Err() == nil && waiting.Err() != nil:
		return l.turn(of)
	}
	return nil, err
}

// mostAround is at how many jobs of a line it is looked at a time.
const mostAround = 64

// turn returns the job of a line whose turn has come, if the key lies idle: the order
// of a line is as exact as looks are.
func (l *lines) turn(of *line) (*away, error) {
	m := l.mutex
	for i, w := range of.away[:min(len(of.away), mostAround)] {
		s, err := m.client.Standing(l.life, w.place, m.sameKey())
		switch {
		case err != nil:
			return nil, err
		case !s.Waits:
			return w, nil
		case i == 0 && !s.Idle:
			return nil, nil
		}
	}
	return nil, nil
}

// again puts jobs back that have no place in their line yet.
func (l *lines) again(of *line, fresh []*away) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.fresh = append(slices.Clone(fresh), of.fresh...)
}

// next returns some of those that were put off since, how near to its turn the first
// is to be made runnable, and a context that ends when there are more or that may be
// another; none if nobody is left.
func (l *lines) next(key dibs.Key, of *line) (fresh []*away, near int, ctx context.Context, end context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	gone := func(w *away) bool { return w.gone }
	of.away = slices.DeleteFunc(of.away, gone)
	of.fresh = slices.DeleteFunc(of.fresh, gone)
	// Those that come soon are not to wait for those that do not.
	slices.SortStableFunc(of.fresh, func(v, w *away) int { return cmp.Compare(v.ahead, w.ahead) })
	n := min(len(of.fresh), placedAtOnce)
	fresh, of.fresh = slices.Clone(of.fresh[:n]), slices.Delete(of.fresh, 0, n)
	if len(of.away)+len(fresh) == 0 {
		delete(l.byKey, key)
		l.hungry = slices.DeleteFunc(l.hungry, func(other *line) bool { return other == of })
		return nil, 0, nil, nil
	}
	ctx, end = context.WithCancel(l.life)
	of.change = end
	if len(of.fresh) > 0 {
		end() // one look at the first, and then the others
	}
	return fresh, l.reach(of), ctx, end
}

// place puts a job where it belongs in its line: mostly at the end.
func (l *lines) place(of *line, w *away) error {
	low, high := 0, len(of.away)
	for mid := high - 1; low < high; mid = (low + high) / 2 {
		before, err := l.before(of.away[mid], w)
		if err != nil {
			return err
		}
		if before {
			low = mid + 1
		} else {
			high = mid
		}
	}
	of.away = slices.Insert(of.away, low, w)
	return nil
}

// maxLooks is how often two places are looked at that are too near to one another to
// be told apart while the queue moves.
const maxLooks = 8

// before reports whether v comes before w. Places of a key keep their order, so that
// looking at both tells; but time goes by between two looks, and the numbers fall. So
// w counts as what it is beside v before and after.
func (l *lines) before(v, w *away) (bool, error) {
	switch {
	case w.ahead > v.ahead && !w.from.Before(v.to):
		return true, nil // v had no more before it by then
	case w.ahead < v.ahead && !v.from.Before(w.to):
		return false, nil // nor w
	}
	if err := l.look(v); err != nil {
		return false, err
	}
	for range maxLooks {
		was := v.ahead
		if err := l.look(w); err != nil {
			return false, err
		}
		if err := l.look(v); err != nil {
			return false, err
		}
		switch {
		case v.ahead < 0 || w.ahead < 0:
			return v.ahead < 0, nil
		case w.ahead < v.ahead:
			return false, nil
		case w.ahead > was:
			return true, nil
		}
	}
	return true, nil
}

// look notes how many come before a job now; -1 for one that has nothing to wait for.
func (l *lines) look(w *away) error {
	from := time.Now()
	s, err := l.mutex.client.Standing(l.life, w.place, l.mutex.sameKey())
	if err != nil {
		return err
	}
	w.ahead, w.from, w.to = s.Ahead, from, time.Now()
	if !s.Waits {
		w.ahead = -1
	}
	return nil
}

// sameKey are the options with which the key is looked at.
func (m *Mutex) sameKey() *dibs.AcquireOptions {
	return &dibs.AcquireOptions{Permits: m.options.Permits}
}
