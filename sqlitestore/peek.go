package sqlitestore

import (
	"slices"

	"github.com/dibs-go/dibs"
)

// peek answers claims that wait while others have the file locked, as far as that
// needs no writing: a record answers, or somebody holds the key and the claim does not
// want to wait for it. Readers are in no writer's way, and so whoever comes twice
// hears so at once, however long a transaction of the application takes.
//
// The writing goroutine calls it, outside of its transactions.
func (s *Store) peek() {
	calls := s.unpeeked()
	if len(calls) == 0 {
		return
	}
	var answered []*call
	if _, err := s.st.read.Run(); err == nil {
		// What is wrong with the file is told to those whose turn it is.
		answered, _ = s.tx.peek(s, calls)
		s.rollback()
	}
	s.putBack(calls, answered)
	s.finish(answered, nil)
}

// mostPeeked is how many claims are looked at between two looks at whether the file is
// free, so that it does not wait for that.
const mostPeeked = 64

// peek reads one snapshot, and returns the calls that it answers.
func (tx *transaction) peek(s *Store, calls []*call) (answered []*call, err error) {
	if err := tx.begin(s); err != nil {
		return nil, err
	}
	for _, c := range calls {
		whole := true
		for i := range c.claims {
			told, err := tx.peekClaim(&c.claims[i], &c.answers[i])
			if err != nil {
				return answered, err
			}
			whole = whole && told
		}
		if whole {
			answered = append(answered, c)
		} else {
			clear(c.answers)
		}
	}
	return answered, nil
}

// peekClaim answers a claim and reports true, unless the claim has to write for that.
func (tx *transaction) peekClaim(c *dibs.Claim, a *dibs.Answer) (bool, error) {
	if a.Err = c.Validate(); a.Err != nil {
		return true, nil
	}
	if c.Mode == dibs.Reserve || !c.Redeems.IsZero() {
		return false, nil
	}
	tx.use(c.Key, c.Token)
	ks, err := tx.load()
	if err != nil || ks.unwritten() {
		return false, err
	}
	if c.Mode != dibs.Look {
		// A lease or a place of the token's own is prolonged, confirmed or given up.
		if ks.holder(c.Token) != nil {
			return false, nil
		}
		if own, err := tx.findWaiter(c.Token); err != nil || own.seq != 0 {
			return false, err
		}
	}
	if err := tx.look(ks, c, a); err != nil {
		return false, err
	}
	switch {
	case c.Mode == dibs.Look:
		return true, nil
	case a.State == dibs.Free:
		return false, nil
	case a.State == dibs.Held:
		return c.Mode == dibs.Try && !ks.canPress(), nil
	}
	return true, nil
}

// unpeeked returns the calls in the queue that peek may answer and has not looked at
// yet. Their callers wait until it has.
func (s *Store) unpeeked() []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var calls []*call
	claims := 0
	for _, c := range s.queue {
		if n := len(c.claims); n > 0 && !c.peeked && claims+n <= mostPeeked {
			c.peeked, c.phase = true, applying
			calls = append(calls, c)
			claims += n
		}
	}
	return calls
}

// putBack lets the calls wait on, but for those that are answered.
func (s *Store) putBack(calls, answered []*call) {
	s.setPhase(calls, queued)
	if len(answered) == 0 {
		return
	}
	s.setPhase(answered, committing)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = slices.DeleteFunc(s.queue, func(c *call) bool { return c.phase == committing })
}
