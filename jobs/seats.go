package jobs

import (
	"context"
	"slices"
	"time"
)

// seat is a worker in which a job waits for its turn.
type seat struct {
	due  time.Time // about when its turn comes
	next bool      // nobody came before it when it sat down
	left context.CancelFunc
	ctx  context.Context // ends when it is sent away
}

// sit gives a job with so many before it a seat, if there is one. When there is none,
// the one whose turn is farthest goes back to its queue for one that is next, or whose
// turn comes before it could be back from there: a key lies idle when its next job finds
// no seat, and those behind are there only to be next in time.
func (l *lines) sit(ahead int) (*seat, bool) {
	run := l.mutex.takes()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &seat{next: ahead == 0, due: time.Now().Add(time.Duration(ahead) * run)}
	if len(l.seated) >= l.seats() && !l.sendAway(s) {
		return nil, false
	}
	s.ctx, s.left = context.WithCancel(context.Background())
	l.seated = append(l.seated, s)
	return s, true
}

// sendAway sends the one away whose turn comes last, if it comes after that one's. The
// caller has the lock.
func (l *lines) sendAway(of *seat) bool {
	var last *seat
	for _, s := range l.seated {
		if !s.next && (last == nil || s.due.After(last.due)) {
			last = s
		}
	}
	if last == nil || !of.next && last.due.Before(of.due.Add(sentFor)) {
		return false
	}
	l.seated = slices.DeleteFunc(l.seated, func(s *seat) bool { return s == last })
	last.left()
	return true
}

// leave gives a seat back.
func (l *lines) leave(s *seat) {
	if s == nil {
		return
	}
	s.left()
	l.mu.Lock()
	l.seated = slices.DeleteFunc(l.seated, func(other *seat) bool { return other == s })
	l.mu.Unlock()
	l.seat()
}

func (l *lines) seats() int { return l.mutex.options.Seats }

// reach returns how near to its turn a job of that line is to be made runnable: as
// near as there is a seat for; at 0 when its turn has come. The caller has the lock.
func (l *lines) reach(of *line) int {
	if len(l.seated)+l.coming < l.seats() {
		return l.mutex.near()
	}
	if !of.hungry {
		of.hungry = true
		l.hungry = append(l.hungry, of)
	}
	if slices.ContainsFunc(l.seated, func(s *seat) bool { return !s.next }) {
		return 1
	}
	return 0
}

// seat tells one of those who found no seat that there may be one now.
func (l *lines) seat() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.hungry) > 0 {
		of := l.hungry[0]
		l.hungry = l.hungry[1:]
		of.hungry = false
		of.change()
	}
}
