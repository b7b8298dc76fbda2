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

// aheadAt is how many come before a job, and its position in the line of its key, or less:
// how many places will have gone when its turn comes.
type aheadAt struct{ ahead, at int }

// asking is when the store was asked how many come before a job, and how many places of
// its key were known to have gone by then.
type asking struct {
	at   time.Time
	gone int
}

// asking notes that the store is asked about a job of that key.
func (l *lines) asking(key dibs.Key) asking {
	l.mu.Lock()
	defer l.mu.Unlock()
	return asking{at: time.Now(), gone: l.gone(key)}
}

// heard returns where a job is that so many came before at some moment since then.
func (q asking) heard(ahead int) aheadAt { return aheadAt{ahead: ahead, at: q.gone + ahead} }

// position is where a job is in the line of its key. It is under the lock.
type position struct {
	at    int // how many places will have gone when its turn comes, or less
	known int // how many were known to have gone before the store was asked about it
}

// asks notes that the store is asked about jobs that were put off, from now on.
func (l *lines) asks(those ...*away) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range those {
		w.known = l.gone(w.place.Key)
	}
}

// shows notes that so many came before a job of that key at some moment since the store was
// asked about it: it is no nearer than that, and the line has moved so far. The caller has
// the lock.
func (l *lines) shows(key dibs.Key, p *position, ahead int) {
	p.at = max(p.at, p.known+ahead)
	if gone := p.at - ahead; gone > l.gone(key) {
		l.moves[key] = progress{gone: gone, at: time.Now()}
		if of := l.byKey[key]; of != nil {
			if of.lull = (lull{}); of.isNear(gone) {
				of.change()
			}
		}
	}
	p.known = l.gone(key)
}

// begin begins to count for a key, where others were forgotten: who has a position by one of
// those comes first. The caller has the lock.
func (l *lines) begin(key dibs.Key) {
	if _, ok := l.moves[key]; !ok {
		l.moves[key] = progress{gone: l.floor}
	}
}

// gone returns how many places of a key have gone, as far as is known. The caller has the
// lock.
func (l *lines) gone(key dibs.Key) int {
	if p, ok := l.moves[key]; ok {
		return p.gone
	}
	return l.floor
}

// moving reports whether the line of a key was seen to move a moment ago: if the key lies
// idle now, that is between two jobs. The caller has the lock.
func (l *lines) moving(key dibs.Key) bool { return time.Since(l.moves[key].at) < idleMoment }

// moved is moving for who has not got the lock.
func (l *lines) moved(key dibs.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving(key)
}

// forget counts anew if nobody sits for a key or looks at it. The caller has the lock.
func (l *lines) forget(key dibs.Key) {
	if l.byKey[key] != nil {
		return
	}
	for _, r := range l.rooms {
		if slices.ContainsFunc(r.seated, func(s *seat) bool { return s.key == key }) {
			return
		}
	}
	l.floor = max(l.floor, l.moves[key].gone)
	delete(l.moves, key)
}
