package jobs

import (
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// progress is how far the line of a key has moved, as far as answers of the store have
// shown, since somebody sits for the key or looks at it.
type progress struct {
	gone int       // so many places have gone
	at   time.Time // when that was last seen to grow
}

// gone returns how many places of a key have gone, as far as is known. What is asked
// after that, and answered with so many before a job, says that its position is at least
// that much more.
func (l *lines) gone(key dibs.Key) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moves[key].gone
}

// seen notes that so many come before one that was at that position: how many places
// will have gone when its turn comes. It returns its position. The line has moved so far;
// or the position was too low. The caller has the lock.
func (l *lines) seen(key dibs.Key, position, ahead int) int {
	p := l.moves[key]
	if position-ahead <= p.gone {
		return p.gone + ahead
	}
	l.moves[key] = progress{gone: position - ahead, at: time.Now()}
	return position
}

// moving reports whether the line of a key was seen to move a moment ago: if the key lies
// idle now, that is between two jobs. The caller has the lock.
func (l *lines) moving(key dibs.Key) bool { return time.Since(l.moves[key].at) < idleMoment }

// forget counts anew if nobody sits for a key or looks at it. The caller has the lock.
func (l *lines) forget(key dibs.Key) {
	if l.byKey[key] == nil && !slices.ContainsFunc(l.seated, func(s *seat) bool { return s.key == key }) {
		delete(l.moves, key)
	}
}
