package jobs

import (
	"context"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// seat is a worker in which a job waits for its turn.
type seat struct {
	key  dibs.Key
	room *room
	position
	next bool // nobody came before it when it sat down
	left context.CancelFunc
	ctx  context.Context // ends when it is sent away
}

// sit gives a job a seat, if there is one. When there is none, the one whose turn is
// farthest goes back to its queue for one that is next, or whose turn comes before it
// could be back from there: a key lies idle when its next job finds no seat, and those
// behind are there only to be next in time. With more, one whose turn comes before it could
// be back has one of a few more, for as long as its line moves.
func (l *lines) sit(key dibs.Key, r *room, at aheadAt, more bool) (*seat, bool) {
	run := l.mutex.takes()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &seat{key: key, room: r, position: position{at: at.at, known: l.gone(key)}, next: at.ahead == 0}
	s.ctx, s.left = context.WithCancel(context.Background())
	switch n := len(r.seated); {
	case n < r.seats:
	case more && n < r.seats+r.extra && time.Duration(l.left(s)+1)*run < backIn:
		l.lend(s)
	case !l.sendAway(s, run):
		s.left()
		return nil, false
	}
	l.begin(key)
	r.seated = append(r.seated, s)
	return s, true
}

// lend sees to it that one who has one of the few more seats gives it back when its line has
// not moved for a while, unless there are enough by then, or its turn is next.
func (l *lines) lend(s *seat) {
	look := time.AfterFunc(backIn, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case len(s.room.seated) <= s.room.seats || l.left(s) == 0:
		case time.Since(l.moves[s.key].at) < backIn:
			l.lend(s)
		default:
			l.dismiss(s)
		}
	})
	context.AfterFunc(s.ctx, func() { look.Stop() })
}

// left is how many places of its key are thought to come before one that has a seat.
// The caller has the lock.
func (l *lines) left(s *seat) int { return max(0, s.at-l.gone(s.key)) }

// sendAway sends the one away whose turn comes last of those who go for that one. The
// caller has the lock.
func (l *lines) sendAway(of *seat, run time.Duration) bool {
	var last *seat
	for _, s := range of.room.seated {
		if !s.next && (of.next || l.left(of) <= l.goesFor(s, of.key, run)) && (last == nil || l.left(s) > l.left(last)) {
			last = s
		}
	}
	if last == nil {
		return false
	}
	l.dismiss(last)
	return true
}

// dismiss sends one away. The caller has the lock.
func (l *lines) dismiss(s *seat) {
	s.room.seated = slices.DeleteFunc(s.room.seated, func(other *seat) bool { return other == s })
	s.left()
}

// goesFor returns how many may come before a job of that key at most, for the one that
// sits there to go back to its queue for it; -1 if it does for none that is not next. Of
// one key it is known who comes first, however fast its jobs go. The caller has the lock.
func (l *lines) goesFor(s *seat, key dibs.Key, run time.Duration) int {
	left, run := l.left(s), max(run, 1)
	most := left - int((sentFor+run-1)/run)
	if s.key == key {
		most = max(most, min(left-1, int((backIn-1)/run)))
	}
	return max(most, -1)
}

// leave gives a seat back. has is that its job has the key.
func (l *lines) leave(s *seat, has bool) {
	if s == nil {
		return
	}
	defer l.seat(s.room)
	s.left()
	l.mu.Lock()
	defer l.mu.Unlock()
	if has && slices.Contains(s.room.seated, s) { // the count may have begun anew since it was sent away
		l.shows(s.key, &s.position, -1)
	}
	s.room.seated = slices.DeleteFunc(s.room.seated, func(other *seat) bool { return other == s })
	l.forget(s.key)
}

// stands notes how many come before a job that has a seat.
func (l *lines) stands(s *seat, ahead int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(s.room.seated, s) {
		l.shows(s.key, &s.position, ahead)
	}
}

// sat returns the position of a job that had a seat.
func (l *lines) sat(s *seat) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.at
}

// reach returns how near to its turn a job of that key and pool is to be made runnable: as
// near as there is a seat for; at 0 when its turn has come. The caller has the lock.
func (l *lines) reach(key dibs.Key, r *room) int {
	most := l.mutex.near(r)
	if r.free() > 0 {
		return most
	}
	near, run := 0, l.mutex.takes()
	for _, s := range r.seated {
		if !s.next {
			near = max(near, 1, 1+l.goesFor(s, key, run))
		}
	}
	if len(r.seated) < r.forCalled() && r.mayCall() {
		// Those on their way may go to other processes, or are farther from their turn. If
		// not, one that comes may find no seat.
		near = max(near, (most+1)/2)
	}
	return min(near, most)
}
