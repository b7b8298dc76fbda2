package httpstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/internal/pace"
	"github.com/dibs-go/dibs/store"
)

// A claim that a server did not answer may still be carried out: the server paused, or the
// call is still on its way. If its token is settled meanwhile, through another server or another
// connection, the claim comes after that and gets a lease that nobody has. So the token is settled
// once more, lateUndo later. What comes even later stands until its TTL is over.
const (
	lateUndo = time.Second
	// doubtful is how long a token is remembered after a claim that was not answered.
	doubtful = time.Minute
	// maxDoubts bounds how many are.
	maxDoubts = 1 << 14
)

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
		if until, ok := s.undoing[t]; ok {
			delete(s.undoing, t)
			s.doubts[t] = until
		}
	}
}

// undoLate undoes, in the background, what late claims of these tokens get. errs are the answers to
// the settlements: a token that may still hold its key keeps it.
func (s *Store) undoLate(settled []store.Settlement, errs []error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var late []store.Settlement
	for i, x := range settled {
		until, ok := s.doubts[x.Token]
		if !ok || errs[i] != nil && !errors.Is(errs[i], store.ErrLost) && !errors.Is(errs[i], errSettled) {
			continue
		}
		delete(s.doubts, x.Token)
		if now.Before(until) {
			s.undoing[x.Token] = until
			late = append(late, store.Settlement{Key: x.Key, Token: x.Token, Outcome: store.Undo})
		}
	}
	if len(late) == 0 || s.stopped.Err() != nil {
		return
	}
	s.running.Go(func() {
		if pace.Sleep(s.stopped, lateUndo) != nil {
			return
		}
		s.mu.Lock()
		late = slices.DeleteFunc(late, func(x store.Settlement) bool {
			_, ok := s.undoing[x.Token]
			delete(s.undoing, x.Token)
			return !ok
		})
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(s.stopped, lateUndo)
		defer cancel()
		_, _, _ = s.call(ctx, "settle", leaseapi.WriteSettlements(late), len(late)) // if it fails, the lease expires
	})
}
