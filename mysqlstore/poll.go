package mysqlstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

const (
	// fastPoll to slowPoll is how often the server is asked: often after something
	// happened, and more and more seldom after that.
	fastPoll = time.Millisecond
	slowPoll = 8 * time.Millisecond
	// eager is how many looks without a find make the next ones rarer.
	eager = 40
	// looked is how many tokens one look asks for: those whose turn comes first. Each
	// one has its place known again when it asks.
	looked = 256
	// perPlace is how much later a look may be for each place that comes before the
	// next one of this process, and farPoll how late at most: in a crowd of processes
	// those who are far back leave the server to those whose turn is near.
	perPlace = 3 * time.Millisecond
	farPoll  = 300 * time.Millisecond
	// measured is of how many keys one look counts who comes before.
	measured = 16
	// pollLimit bounds one look.
	pollLimit = 4 * time.Second
)

// poll looks whose turn has come, while somebody waits, until the store is closed.
func (w *waiting) poll() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-w.more:
		case <-w.s.life.Done():
			return
		}
		interval, idle := fastPoll, 0
		for took := time.Duration(0); ; {
			// Looks that take long, because many wait or the server is busy, are rarer.
			at := time.Now().Add(max(interval, 2*took, w.far()))
			for waits := true; waits; {
				timer.Reset(time.Until(at))
				select {
				case <-timer.C:
					waits = false
				case <-w.more: // somebody new, who may be nearer
					interval, idle = fastPoll, 0
					if sooner := time.Now().Add(max(interval, 2*took, w.far())); sooner.Before(at) {
						at = sooner
					}
				case <-w.s.life.Done():
					return
				}
			}
			start := time.Now()
			found, busy := w.look()
			took = time.Since(start)
			if !busy {
				break
			}
			if idle++; found {
				interval, idle = fastPoll, 0
			} else if idle >= eager {
				interval, idle = min(2*interval, slowPoll), 0
			}
		}
	}
}

// look tells those who were granted the key, and wakes those whose place has gone, or
// has changed since it was last seen. busy says that somebody still waits.
func (w *waiting) look() (found, busy bool) {
	tokens := w.waiters()
	if len(tokens) == 0 {
		return false, false
	}
	ctx, cancel := context.WithTimeout(w.s.life, pollLimit)
	defer cancel()
	seen, err := w.ask(ctx, tokens)
	if err != nil {
		return false, true // only hints are lost, and the calls tell what is wrong
	}
	due := w.due(seen)
	w.told(due)
	return len(due) > 0, true
}

// far returns how long the next of those who wait here is likely to do so.
func (w *waiting) far() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	nearest := int(farPoll / perPlace)
	for _, p := range w.places {
		nearest = min(nearest, p.ahead)
	}
	return time.Duration(nearest) * perPlace
}

// asking is a token whose place is looked at.
type asking struct {
	token dibs.Token
	waiter
	kind   int64 // of its place; -1: it has none
	grant  lease // when it is granted the key
	passed bool  // all who came before it have run out, and nobody has put that down
	wonder bool  // the key's outcome is unknown
}

// waiters returns who waits, and forgets those whose places have run out.
func (w *waiting) waiters() []*asking {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	var all []*asking
	for t, p := range w.places {
		if now.After(p.until) {
			delete(w.places, t)
			continue
		}
		all = append(all, &asking{token: t, waiter: *p, kind: -1})
	}
	if len(all) > looked {
		slices.SortFunc(all, func(a, b *asking) int { return cmp.Compare(a.ahead, b.ahead) })
		all = all[:looked]
	}
	return all
}

// ask asks what has become of the tokens.
func (w *waiting) ask(ctx context.Context, tokens []*asking) ([]*asking, error) {
	byToken, keys, many := map[dibs.Token]*asking{}, map[string]bool{}, map[string]bool{}
	s, n := &script{}, w.s.names
	// Places first: who has none any more has been granted before, if at all.
	s.raw(n.sql("SELECT token,kind FROM @waiter WHERE token IN (x''"))
	for _, a := range tokens {
		byToken[a.token] = a
		keys[a.key] = true
		if a.many {
			many[a.key] = true
		}
		s.raw(",").token(&a.token)
	}
	s.raw(") AND ends>" + clock).asks(func(r *reading) error {
		if a := byToken[r.token()]; a != nil {
			a.kind = r.int()
		}
		return r.err
	})
	// Who inherits progress and holds the key was granted it by an answer, which has got
	// lost if it still waits, and which the grant alone does not make up for.
	grants := func(r *reading) error {
		if a := byToken[r.token()]; a != nil {
			a.grant = lease{token: a.token, offered: r.bool(), fence: r.int(), attempt: r.int()}
		}
		return r.err
	}
	s.raw(n.sql("SELECT token,offered OR inherits,fence,attempt FROM @key FORCE INDEX (PRIMARY) WHERE k IN (")).keys(sorted(keys)).raw(") AND token<>x''").asks(grants)
	if len(many) > 0 {
		s.raw(n.sql("SELECT token,offered OR inherits,fence,attempt FROM @holder FORCE INDEX (PRIMARY) WHERE k IN (")).keys(sorted(many)).raw(")").asks(grants)
	}
	for _, a := range nearest(tokens) {
		s.raw(n.sql("SELECT COUNT(*),COALESCE(SUM(v.kind<3 AND v.ends>" + clock + "),0),COALESCE(SUM(v.ends<=" + clock + "),0)" +
			" FROM @waiter w JOIN @waiter v ON v.k=w.k AND v.seq<w.seq WHERE w.token=")).token(&a.token)
		s.asks(func(r *reading) error {
			a.ahead = int(r.int())
			stand, ended := r.int(), r.int()
			a.passed = stand == 0 && ended > 0
			return r.err
		})
	}
	stuck := map[string]bool{}
	s.raw(n.sql("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k IN (")).keys(sorted(keys)).raw(") AND lost_once=1")
	s.asks(func(r *reading) error { stuck[r.string()] = true; return r.err })
	if err := use(ctx, w.s.ear, func(c session) error { return c.run(ctx, s) }); err != nil {
		return nil, err
	}
	for _, a := range tokens {
		a.wonder = stuck[a.key]
	}
	return tokens, nil
}

// nearest returns, of each of some keys, the token that comes first as far as is
// known, unless nothing comes before it.
func nearest(tokens []*asking) []*asking {
	first := map[string]*asking{}
	for _, a := range tokens {
		if f := first[a.key]; f == nil && len(first) < measured || f != nil && a.ahead < f.ahead {
			first[a.key] = a
		}
	}
	var all []*asking
	for _, a := range first {
		if a.ahead > 0 {
			all = append(all, a)
		}
	}
	return all
}

// due returns those whose turn has come, or may have.
func (w *waiting) due(seen []*asking) []turn {
	w.mu.Lock()
	defer w.mu.Unlock()
	var due []turn
	for _, a := range seen {
		p := w.places[a.token]
		if p != nil {
			p.ahead = a.ahead
		}
		switch {
		case p == nil:
		case !a.grant.token.IsZero() && !a.grant.offered:
			due = append(due, turn{a.token, grantOf(&a.grant)})
		case a.kind < 0, a.kind == called, a.passed && a.kind < taken, a.wonder, p.seen >= 0 && p.seen != a.kind:
			due = append(due, turn{token: a.token})
		default:
			p.seen = a.kind
		}
	}
	return due
}
