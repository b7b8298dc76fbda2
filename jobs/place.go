package jobs

import (
	"cmp"
	"slices"

	"github.com/dibs-go/dibs"
)

// inFront is at how many jobs in front of a line it is looked to tell their order, and
// among how many it is looked for the one whose turn has come.
const (
	inFront    = 16
	mostAround = 64
)

// add puts a job in its place, by its position. Whoever watches looks anew when it comes
// to stand in front. The caller has the lock.
func (of *line) add(w *away) {
	i := len(of.away)
	for i > 0 && of.away[i-1].at > w.at {
		i--
	}
	of.away = slices.Insert(of.away, i, w)
	if i < inFront {
		of.change()
	}
}

// some returns those in front of a line, but for that many, who are still put off. The
// caller has the lock.
func (of *line) some(from int) []*away {
	from = min(from, len(of.away))
	return slices.DeleteFunc(slices.Clone(of.away[from:min(from+mostAround, len(of.away))]), (*away).over)
}

// isNear reports whether somebody of a line is near enough to be made runnable once so
// many have gone. The caller has the lock.
func (of *line) isNear(gone int) bool {
	i := slices.IndexFunc(of.away, func(w *away) bool { return !w.over() })
	return i >= 0 && of.away[i].at-gone < of.near
}

// crowded reports whether so many jobs of a key are put off that one which comes for the
// first time has hardly its turn: mostly jobs come in their order.
func (l *lines) crowded(key dibs.Key, r *room) bool {
	near := l.mutex.near(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.byKey[key]
	return of != nil && len(of.away) > 0 && of.away[len(of.away)-1].at-l.gone(key) >= near
}

// sort puts those of a line in their places again. The caller has the lock.
func (of *line) sort() {
	slices.SortStableFunc(of.away, func(v, w *away) int { return cmp.Compare(v.at, w.at) })
}

// passed reports whether one of those behind it may come well before the first of a line,
// of which it is known now where it is: positions may be too low, not too high. Those that
// come shortly before it are looked at together with it, when it is that near to its turn.
func (l *lines) passed(those []*away, near int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(those) > 1 && those[1].at < those[0].at-near/2
}

// compare looks at some of a line and notes where they are now.
func (l *lines) compare(those []*away) ([]dibs.Standing, error) {
	standings, err := l.look(those)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	gone := 0
	for i, w := range those {
		if standings[i].Waits {
			gone = max(gone, w.at-standings[i].Ahead, w.known)
		}
	}
	for i, w := range those { // by what all of them have shown: mostly that is one moment
		if w.at = 0; standings[i].Waits {
			w.known = gone
			l.shows(w.place.Key, &w.position, standings[i].Ahead)
		}
	}
	return standings, nil
}
