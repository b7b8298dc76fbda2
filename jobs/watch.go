package jobs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
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

// pivots is with how many of a line a job is compared at a time.
const pivots = 7

// place puts a job where it belongs in its line: mostly at the end. Places of a key
// keep their order, so that looking at two tells which comes first. Looks that are sent
// together are answered at one moment, by most stores; where they are not, the numbers
// may have fallen in between, and the order is not so exact.
func (l *lines) place(of *line, w *away) error {
	low, high := 0, len(of.away)
	for low < high {
		if last := of.away[high-1]; w.ahead > last.ahead && !w.from.Before(last.to) {
			low = high // that one had no more before it by then
			break
		}
		n := min(pivots, high-low)
		those := make([]*away, n, n+1)
		for i := range those {
			those[i] = of.away[low+(high-low)*(i+1)/n-1]
		}
		if err := l.look(append(those, w)); err != nil {
			return err
		}
		from := low
		for i, v := range those {
			at := from + (high-from)*(i+1)/n - 1
			if v.ahead >= w.ahead {
				high = at
				break
			}
			low = at + 1
		}
	}
	of.away = slices.Insert(of.away, low, w)
	return nil
}

// look notes how many come before these jobs now; -1 for one that has nothing to wait
// for.
func (l *lines) look(those []*away) error {
	errs := make([]error, len(those))
	var wg sync.WaitGroup
	for i, w := range those {
		wg.Go(func() {
			from := time.Now()
			s, err := l.mutex.client.Standing(l.life, w.place, l.mutex.sameKey())
			if errs[i] = err; err != nil {
				return
			}
			w.ahead, w.from, w.to = s.Ahead, from, time.Now()
			if !s.Waits {
				w.ahead = -1
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// sameKey are the options with which the key is looked at.
func (m *Mutex) sameKey() *dibs.AcquireOptions {
	return &dibs.AcquireOptions{Permits: m.options.Permits}
}
