package jobs

import (
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// lull is the time in which the key of a line lies idle for a place that nobody redeems: for
// that of a job which failed and comes again later, or of one that is on its way; or of one
// in the line that is nearer to its turn than is known. It is over when the line moves, or
// somebody holds the key.
type lull struct {
	since   time.Time     // when that was first seen; zero while it is not
	looked  time.Duration // how long it had lasted when it was last looked whose turn it is
	from    int           // how many of the whole line were looked at, while it is
	stirred bool          // somebody of the line was called, and has asked
}

const (
	// lullSoon is how long a lull lasts when it is looked whose turn it is among those in
	// front; and again when it has lasted for twice as long.
	lullSoon = 20 * time.Millisecond
	// lullLong is from when on that is looked for in the whole line.
	lullLong = time.Second
)

// lies notes whether the key of a line lies idle, and reports whether search has something to
// do: also when a lull begins and the line has not moved for a while, as it was looked at
// seldom until then.
func (l *lines) lies(of *line, key dibs.Key, idle bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := &of.lull
	if !idle {
		*u = lull{}
		return false
	}
	if u.since.IsZero() {
		u.since = time.Now()
		return !l.moving(key)
	}
	return u.from > 0 || u.isDue()
}

// isDue reports whether it is to be looked whose turn it is.
func (u *lull) isDue() bool {
	lasts := time.Since(u.since)
	return !u.since.IsZero() && lasts >= max(lullSoon, 2*u.looked)
}

// search looks whose turn it is: among those in front of a line, or among the next ones of
// the whole line. If it is the turn of none, the first of them is called once: the Hold of
// the place in front counts from when somebody asks for the key, and a look does not.
func (l *lines) search(of *line, those []*away) ([]*away, error) {
	l.mu.Lock()
	before := of.lull
	after := before
	if after.from == 0 {
		if !after.isDue() {
			l.mu.Unlock()
			return nil, nil
		}
		after.looked = time.Since(after.since)
	}
	whole, last := after.looked >= lullLong, false
	if whole {
		those = of.some(after.from)
		after.from += mostAround
		last = after.from >= len(of.away)
	}
	l.mu.Unlock()
	turn, idle, err := l.turn(those)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		of.lull = before
		return nil, err
	case len(turn) == 0 && !idle:
		of.lull = lull{}
		return nil, nil
	case len(turn) > 0 || !whole || last:
		after.from = 0
	}
	// Also if the line has moved by places that were given up: it is the same lull.
	if of.lull = after; len(turn) > 0 {
		return turn, nil
	}
	if first := of.some(0); last && !after.stirred && len(first) > 0 {
		of.lull.stirred, first[0].stirred = true, true
		return first[:1], nil
	}
	return nil, nil
}

// turn returns the one of those whose turn has come, and otherwise whether the key lies idle.
func (l *lines) turn(those []*away) (turn []*away, idle bool, err error) {
	standings, err := l.compare(those)
	if i := slices.IndexFunc(standings, func(s dibs.Standing) bool { return !s.Waits }); i >= 0 {
		return those[i : i+1], false, nil
	}
	return nil, len(those) == 0 || slices.ContainsFunc(standings, func(s dibs.Standing) bool { return s.Idle }), err
}
