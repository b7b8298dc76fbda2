package httpstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/store"
)

// A claim that a server did not answer may still be carried out: the server is frozen, or the
// call is still on its way. If its token is settled meanwhile, through another server or another
// connection, the claim comes after that and gets a lease or a place that nobody has. So the token
// is settled again and again, for as long as a server may have been frozen. What comes even later
// stands until its TTL or its PlaceTTL is over.
const (
	// lateUndo is the pause before the first of these settlements. It doubles up to maxLateUndo.
	lateUndo    = time.Second
	maxLateUndo = 15 * time.Second
	// doubtful is how long after a claim that was not answered its token is settled again.
	doubtful = 5 * time.Minute
	// maxDoubts bounds how many tokens are remembered.
	maxDoubts = 1 << 14
	// undoTimeout is that of a call that settles them.
	undoTimeout = 5 * time.Second
)

// lateClaim is a token that was settled and whose claim may come late.
type lateClaim struct {
	undo  store.Settlement
	until time.Time
	pause time.Duration
	due   time.Time
}

// doubt remembers the tokens of claims that a server did not answer.
func (s *Store) doubt(claims []store.Claim) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, until := range s.doubts {
		if now.After(until) {
			delete(s.doubts, t)
		}
	}
	for i := range claims {
		if claims[i].Mode != store.Look && len(s.doubts) < maxDoubts {
			s.doubts[claims[i].Token] = now.Add(doubtful)
		}
	}
}

// claimed takes these tokens from those that are to be undone: a place that was given back is
// reserved again with its token.
func (s *Store) claimed(claims []store.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range claims {
		t := claims[i].Token
		if late, ok := s.late[t]; ok {
			delete(s.late, t)
			s.doubts[t] = late.until
		}
	}
}

// undoLate undoes, in the background, what late claims of these tokens get. errs are the answers to
// the settlements: a token that may still hold its key keeps it.
func (s *Store) undoLate(settled []store.Settlement, errs []error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range settled {
		until, ok := s.doubts[x.Token]
		if !ok || errs[i] != nil && !errors.Is(errs[i], store.ErrLost) && !errors.Is(errs[i], errSettled) {
			continue
		}
		delete(s.doubts, x.Token)
		if now.Before(until) {
			undo := store.Settlement{Key: x.Key, Token: x.Token, Outcome: store.Undo}
			s.late[x.Token] = &lateClaim{undo, until, lateUndo, now.Add(lateUndo)}
		}
	}
	if len(s.late) > 0 && !s.undoing && s.stopped.Err() == nil {
		s.undoing = true
		s.running.Go(s.undoAll)
	}
}

// undoAll settles the late claims whenever they are due, until none is left.
func (s *Store) undoAll() {
	for backoff.Sleep(s.stopped, lateUndo) == nil {
		due, more := s.dueLate()
		for part := range slices.Chunk(due, leaseapi.MaxElements) {
			ctx, cancel := context.WithTimeout(s.stopped, undoTimeout)
			body := leaseapi.WriteSettlements(part)
			_, _, _ = s.call(ctx, "settle", func(time.Duration) []byte { return body }, len(part), len(s.address.servers)) // if it fails, the next one is soon
			cancel()
		}
		if !more {
			return
		}
	}
}

// dueLate returns what is to be settled now, and whether there will be more.
func (s *Store) dueLate() (due []store.Settlement, more bool) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for t, late := range s.late {
		if !now.Before(late.due) {
			due = append(due, late.undo)
			late.pause = min(2*late.pause, maxLateUndo)
			late.due = now.Add(late.pause)
		}
		if late.due.After(late.until) {
			delete(s.late, t)
		}
	}
	s.undoing = len(s.late) > 0
	return due, s.undoing
}
