package sqllock

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// seats has what the server cannot know: sessions may take a lock again that they have,
// so within one it is here that two exclude one another. Those who want the same key
// come in the order in which they came; those who share sit down together.
type seats struct {
	mu sync.Mutex
	at map[AdvisoryKey]*seat
}

// seat is a key that somebody in this process has or wants.
type seat struct {
	key     AdvisoryKey
	wire    *wire // which session has the lock; nil while it is asked for or given up
	shared  bool
	holders int
	free    func() // once nobody has it: the session may be used by others
	behind  []*comer
}

// comer waits for a seat.
type comer struct {
	shared bool
	called chan *wire // buffered: the session that has the lock, or nil to ask for it
}

// enter waits for the seat of the key. Then the lock is shared with those whose session
// is returned, or the caller is to ask the server, and tells with granted or pass. If
// the seat is taken it returns errHeldHere when it is to try only, and otherwise the
// context's cause when that ends before.
func (s *seats) enter(ctx context.Context, key AdvisoryKey, t *taking) (*seat, *wire, error) {
	s.mu.Lock()
	at := s.at[key]
	switch {
	case at == nil:
		if s.at == nil {
			s.at = map[AdvisoryKey]*seat{}
		}
		at = &seat{key: key}
		s.at[key] = at
		s.mu.Unlock()
		return at, nil, nil
	case at.wire != nil && at.shared && t.shared && len(at.behind) == 0:
		at.holders++
		home := at.wire
		s.mu.Unlock()
		return at, home, nil
	case t.try:
		s.mu.Unlock()
		return nil, nil, errHeldHere
	}
	c := &comer{shared: t.shared, called: make(chan *wire, 1)}
	at.behind = append(at.behind, c)
	s.mu.Unlock()
	select {
	case home := <-c.called:
		return at, home, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	if i := slices.Index(at.behind, c); i >= 0 {
		at.behind = slices.Delete(at.behind, i, i+1)
		s.seatShared(at) // whoever was behind may join those who sit
		s.mu.Unlock()
		return nil, nil, context.Cause(ctx)
	}
	s.mu.Unlock()
	// It was called meanwhile, and has to take it: the caller sees that the context ended.
	return at, <-c.called, nil
}

// granted tells that the session has the lock, and what to call when it has it no more.
// Those who wait next and share come too.
func (s *seats) granted(at *seat, home *wire, shared bool, free func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at.wire, at.shared, at.holders, at.free = home, shared, 1, free
	s.seatShared(at)
}

// seatShared calls those who can sit down with those who sit. The caller has the mutex.
func (s *seats) seatShared(at *seat) {
	for at.wire != nil && at.shared && len(at.behind) > 0 && at.behind[0].shared {
		at.holders++
		at.behind[0].called <- at.wire
		at.behind = at.behind[1:]
	}
}

// leave ends one holder's part. The last one gives the lock up, and then passes the
// seat on. there is false when the session has ended, and the seat was passed on.
func (s *seats) leave(at *seat, home *wire) (last, there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at.wire != home {
		return false, false
	}
	at.holders--
	if at.holders == 0 {
		at.wire = nil
		return true, true
	}
	return false, true
}

// lost passes the seat on if the session had its lock.
func (s *seats) lost(at *seat, home *wire) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at.wire == home {
		at.wire, at.holders = nil, 0
		s.call(at)
	}
}

// pass lets the next one ask.
func (s *seats) pass(at *seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.call(at)
}

func (s *seats) call(at *seat) {
	if at.free != nil {
		at.free()
		at.free = nil
	}
	if len(at.behind) == 0 {
		delete(s.at, at.key)
		return
	}
	at.behind[0].called <- nil
	at.behind = at.behind[1:]
}

// errHeldHere: somebody in this process has the lock, or waits for it.
var errHeldHere = errors.New("sqllock: held in this process")
