package jobs

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs"
)

// How long a job that was put off stays away, should nobody make it runnable.
const (
	awayMin    = 50 * time.Millisecond // where nobody can, at least
	awayBlind  = 2 * time.Second       // and at most
	awayAlone  = 30 * time.Second      // where one can, who may have ended since; or up to twice as long
	awayMax    = 10 * time.Minute
	awaySoon   = 100 * time.Millisecond // because this process ends
	askedAgain = time.Second            // who waits in a worker thinks again
	idleMoment = askedAgain / 2         // also when the key lies idle, or up to twice as long
)

// errLimit: the job's Limit is over.
var errLimit = errors.New("jobs: the limit of the wait is over")

// queue takes the key in its turn and runs fn.
func (a *attempt) queue(ctx context.Context, fn func(context.Context) error) error {
	m := a.mutex
	if m.options.Policy == Replace {
		if newer, err := a.mark(ctx); err != nil {
			return a.refused(ctx, err)
		} else if newer {
			return a.replaced(ctx)
		}
	}
	lease, err := a.agreed(ctx)
	if back, ok := errors.AsType[*ComeBackError](err); ok {
		m.tell(ctx, a, EventPutOff, nil)
		return back
	}
	if errors.Is(err, errLimit) {
		return a.otherwise(ctx, err, fn)
	}
	if err != nil {
		if ctx.Err() != nil && a.job.last(err) {
			a.giveUp(ctx, a.place) // it is cancelled
		}
		return a.refused(ctx, err)
	}
	if m.options.Policy == Replace {
		if newer, err := a.outdated(ctx); err != nil {
			a.undo(ctx, lease)
			return a.refused(ctx, err)
		} else if newer {
			_ = lease.Release() // what is not released here is in the background
			return a.replaced(ctx)
		}
	}
	return a.run(lease, fn)
}

// agreed is turn for a job whose number of permits may be another than that of those who
// hold the key or have places. The job gives its own place back, because with it the old
// number would stand, and comes back without having failed until the others have gone.
func (a *attempt) agreed(ctx context.Context) (*dibs.Lease, error) {
	for {
		lease, err := a.turn(ctx)
		if !errors.Is(err, dibs.ErrPermits) {
			return lease, err
		}
		a.giveUp(ctx, a.place)
		a.placed, a.stood = false, time.Time{}
		a.mustWait(dibs.Standing{})
		a.waitedUntilNow()
		if a.late() {
			return nil, errors.Join(errLimit, err)
		}
		if err := a.later(ctx); err != nil {
			return nil, err
		}
	}
}

// unheld reports whether an ErrHeld does not say that somebody holds the key: reserved
// places keep the caller from it, or those in line agreed on another number of permits.
func unheld(err error) bool { return heldBy(err).Idle || errors.Is(err, dibs.ErrPermits) }

// later has a job come back that cannot have the key yet and has no place in the queue:
// the error is a *ComeBackError. A job that Stays is there again when later returns nil.
func (a *attempt) later(ctx context.Context) error {
	after := awayBlind/2 + rand.N(awayBlind)
	if left, limited := a.left(); limited && left > 0 {
		after = min(after, max(left, awayMin))
	}
	if !a.job.Stays {
		return &ComeBackError{After: after}
	}
	a.mutex.pause(ctx, after)
	return context.Cause(ctx)
}

// turn takes the key when its turn has come, or returns a *ComeBackError; errLimit
// wraps the dibs.ErrHeld of a job whose Limit is over.
func (a *attempt) turn(ctx context.Context) (*dibs.Lease, error) {
	m := a.mutex
	if !a.called.IsZero() {
		m.paths.add(time.Since(a.called))
	}
	if a.tries > 1 {
		a.mustWait(dibs.Standing{})
	}
	lease, at, err := a.first(ctx)
	for {
		if err == nil || !errors.Is(err, dibs.ErrHeld) || errors.Is(err, dibs.ErrPermits) {
			a.waitedUntilNow()
			return lease, err
		}
		held := heldBy(err)
		a.mustWait(dibs.Standing{Placed: held.Placed})
		if held.Placed && a.tries > 1 && a.stood.IsZero() {
			// Another worker has noted that the job is there. It is noted again if the job
			// waits for long.
			a.stood = time.Now().Add(askedAgain - m.options.Recovery/4)
		}
		// Who is next when it comes has no time for it, until it has waited or is put off.
		next := held.Placed && held.Ahead < m.options.Permits && a.stood.IsZero() && time.Since(a.here) < askedAgain/2 && !a.late()
		if !next && (time.Since(a.stood) > m.options.Recovery/4 || !held.Placed) {
			// From now on it is known that the job is there. A place that ran out while
			// the job waited is taken anew, or it would be the last one again and again.
			if _, err := a.stand(ctx, m.options.Recovery); err != nil && (a.stood.IsZero() || !held.Placed) {
				return nil, err
			}
		}
		if a.late() {
			a.waitedUntilNow()
			return nil, errors.Join(errLimit, err)
		}
		at.ahead = held.Ahead
		sits, ok := a.sit(at, held.Idle)
		if !ok {
			return nil, a.goBack(ctx, at)
		}
		a.idles(held.Idle, held.Ahead)
		lease, err = a.waitFrom(ctx, &at, m.lines.asking(a.place.Key), true, sits)
	}
}

// first asks for the key as the job comes to the worker, and returns where the job is if it
// is not its turn.
func (a *attempt) first(ctx context.Context) (lease *dibs.Lease, at aheadAt, err error) {
	m := a.mutex
	from := m.lines.asking(a.place.Key)
	hurry := m.closed() || a.late()
	if a.tries < 2 && !a.job.Stays && !hurry && m.lines.crowded(a.place.Key, a.room) {
		// Its turn has hardly come, and the note that it is there tells as much.
		s, err := a.stand(ctx, m.options.Recovery)
		at = from.heard(s.Ahead)
		if err != nil {
			return nil, at, err
		}
		if s.Ahead >= m.options.Permits && !s.Idle { // or its asking begins the Hold of who is first
			return nil, at, &dibs.HeldError{Key: a.place.Key, Ahead: s.Ahead, Placed: true}
		}
		from = m.lines.asking(a.place.Key)
	}
	if a.tries > 1 && !hurry {
		// It was made runnable as its turn is near, and waits from its first answer on.
		lease, err = a.waitFrom(ctx, &at, from, false, nil)
		return lease, at, err
	}
	now := a.acquire()
	now.NoWait = true
	lease, err = m.client.Redeem(ctx, a.place, now)
	m.asks.add(time.Since(from.at))
	return lease, from.heard(heldBy(err).Ahead), err
}

// waitFrom waits in the worker from that moment on, for a while: in that seat, or, if it
// may not wait yet, in one that it takes with the first answer. Who is sent away, or has
// none, is put off.
func (a *attempt) waitFrom(ctx context.Context, at *aheadAt, from asking, may bool, sits *seat) (*dibs.Lease, error) {
	m := a.mutex
	take := func(s dibs.Standing) (*seat, bool) {
		m.asks.add(time.Since(from.at))
		*at = from.heard(s.Ahead)
		defer a.idles(s.Idle, s.Ahead)
		return a.sit(*at, s.Idle)
	}
	if may || a.job.Stays {
		take = nil
	}
	lease, sits, err := a.wait(ctx, sits, take)
	m.lines.leave(sits, err == nil)
	switch {
	case sits != nil:
		at.at = m.lines.sat(sits)
	case errors.Is(err, dibs.ErrHeld):
		*at = from.heard(heldBy(err).Ahead)
	}
	if !errors.Is(err, errSentAway) {
		return lease, err
	}
	if a.late() {
		return nil, &dibs.HeldError{Key: a.place.Key, Ahead: at.ahead, Placed: true}
	}
	return nil, a.goBack(ctx, *at)
}

// goBack puts the job off, when it is noted that it is there.
func (a *attempt) goBack(ctx context.Context, at aheadAt) error {
	m := a.mutex
	if a.tries < 2 && a.stood.IsZero() {
		if _, err := a.stand(ctx, m.options.Recovery); err != nil && !m.closed() {
			return err
		}
	}
	return a.putOff(at)
}

// stand makes the attempt's place stand, in nobody's way for longer than hold once its
// turn has come.
func (a *attempt) stand(ctx context.Context, hold time.Duration) (dibs.Standing, error) {
	o := &a.mutex.options
	s, err := a.mutex.client.Prolong(ctx, a.place, max(o.Stands, hold), &dibs.AcquireOptions{Permits: o.Permits, Hold: hold, Label: a.acquire().Label})
	if err == nil {
		a.placed, a.stood = true, time.Now()
	}
	return s, err
}

// heldBy returns what an ErrHeld says.
func heldBy(err error) *dibs.HeldError {
	if held, ok := errors.AsType[*dibs.HeldError](err); ok {
		return held
	}
	return &dibs.HeldError{}
}

// sit reports whether the job may wait in the worker: when it was made runnable as its
// turn is near, or when the turn comes before it could be back. While the key lies idle
// it does only for a moment in which the line does not move: the one that is next may need
// the worker.
func (a *attempt) sit(at aheadAt, idle bool) (s *seat, ok bool) {
	m := a.mutex
	switch {
	case a.job.Stays:
		return nil, true
	case m.closed() || idle && at.ahead == a.stuck && !m.lines.moved(a.place.Key) || a.job.Patience > 0 && time.Since(a.here) >= a.job.Patience:
		return nil, false
	case m.options.Policy == Wait:
		return nil, time.Since(a.here) < m.options.Wait
	case at.ahead >= m.near(a.room) && (a.tries < 2 || at.ahead >= maxNear) && time.Duration(at.ahead)*m.takes() > backIn:
		return nil, false
	}
	return m.lines.sit(a.place.Key, a.room, at, !idle && (time.Since(a.here) < backIn || m.lines.moved(a.place.Key)))
}

// idles notes how many come before the job if its key lies idle.
func (a *attempt) idles(idle bool, ahead int) {
	a.stuck = -1
	if idle {
		a.stuck = ahead
	}
	a.stirred = a.stirred && idle
}

// wait waits in the worker for a while, in that seat, or in one that take takes for it
// with the first answer. It returns the seat.
func (a *attempt) wait(ctx context.Context, sits *seat, take func(dibs.Standing) (*seat, bool)) (*dibs.Lease, *seat, error) {
	m := a.mutex
	o := a.acquire()
	o.Wait = askedAgain
	if a.stuck >= 0 {
		o.Wait = idleMoment + rand.N(idleMoment) // not all leave at once
	}
	if left, limited := a.left(); limited {
		// It may be over since it was looked at, and 0 would be without limit.
		o.Wait = max(min(o.Wait, left), time.Millisecond)
	}
	for _, most := range []time.Duration{a.job.Patience, a.bound()} {
		if most > 0 && !a.job.Stays {
			o.Wait = max(min(o.Wait, most-time.Since(a.here)), time.Millisecond)
		}
	}
	waits := take == nil
	if waits {
		m.waiting.Add(1)
	}
	defer func() {
		if waits {
			m.waiting.Add(-1)
		}
	}()
	if a.job.Stays {
		o.Stands = a.mustWait
		lease, err := m.client.Redeem(ctx, a.place, o)
		return lease, nil, err
	}
	a.over()
	waiting, end := context.WithCancelCause(ctx)
	a.waiting = end
	sent := func() { end(errSentAway) } // also late, when the attempt waits anew
	stays := []func() bool{context.AfterFunc(m.life, sent)}
	if sits != nil {
		stays = append(stays, context.AfterFunc(sits.ctx, sent))
	}
	var unplaced *dibs.HeldError
	o.Stands = func(s dibs.Standing) {
		a.mustWait(s)
		switch {
		case !s.Placed: // it is to be taken anew, and not just for this wait
			unplaced = &dibs.HeldError{Key: a.place.Key, Ahead: s.Ahead}
			sent()
		case waits && sits != nil:
			m.lines.stands(sits, s.Ahead)
		case take != nil:
			sits, waits = take(s)
			take = nil
			if !waits {
				sent()
				return
			}
			m.waiting.Add(1)
			if sits != nil {
				stays = append(stays, context.AfterFunc(sits.ctx, sent))
			}
		}
	}
	lease, err := m.client.Redeem(waiting, a.place, o)
	for _, stay := range stays {
		if !stay() && err == nil {
			// The key was granted at that very moment, and sent ends its lease's context
			// or is about to; the place stands again.
			a.undo(ctx, lease)
			lease, err = nil, errSentAway
		}
	}
	if err == nil && errors.Is(context.Cause(waiting), errSentAway) { // it found no seat
		a.undo(ctx, lease)
		lease, err = nil, errSentAway
	}
	if unplaced != nil && errors.Is(err, errSentAway) {
		err = unplaced
	}
	return lease, sits, err
}

// bound is how long the policy lets a job wait in a worker; 0 is without limit.
func (a *attempt) bound() time.Duration {
	if a.mutex.options.Policy == Wait {
		return a.mutex.options.Wait
	}
	return 0
}

// errSentAway: a job that waits is to wait in its queue, as another one needs the worker
// or the Mutex is closed.
var errSentAway = errors.New("jobs: the worker is needed")

// left returns how much of the job's Limit is left, if there is one.
func (a *attempt) left() (time.Duration, bool) {
	limit := a.mutex.options.Limit
	if limit == 0 || a.since.IsZero() {
		return limit, limit > 0
	}
	return limit - time.Since(a.since), true
}

// late reports whether the job's Limit is over.
func (a *attempt) late() bool {
	left, limited := a.left()
	return limited && left <= 0
}

// putOff sees to it that the job is made runnable when its turn is near.
func (a *attempt) putOff(at aheadAt) error {
	m := a.mutex
	a.waitedUntilNow()
	run, _ := m.runs.read()
	after := min(m.options.Recovery/4, awayAlone)
	soonest := time.Duration(max(0, at.ahead+1-m.near(a.room))) * run / time.Duration(m.options.Permits)
	switch {
	case m.closed():
		after = awaySoon
	case a.job.Wake == nil:
		after = min(max(soonest/2, awayMin), awayBlind)
	default:
		// Not all at once, should this process be gone by then.
		after = max(after+rand.N(max(after, 1)), min(soonest/2, awayMax))
		if !m.lines.add(a, at.at) {
			after = awaySoon
		}
	}
	if left, limited := a.left(); limited {
		after = min(after, max(left, awayMin))
	}
	return &ComeBackError{After: after, Ahead: at.ahead}
}

// mustWait notes that the job has to wait, at its place if that stands.
func (a *attempt) mustWait(s dibs.Standing) {
	a.held, a.placed = true, a.placed || s.Placed
	if a.since.IsZero() {
		a.since = time.Now()
	}
}

// waitedUntilNow notes how long the job has waited, if it had to.
func (a *attempt) waitedUntilNow() {
	if a.held {
		a.waited = max(time.Since(a.since), 0)
	}
}

// otherwise does what was chosen for a job whose Limit is over.
func (a *attempt) otherwise(ctx context.Context, held error, fn func(context.Context) error) error {
	m := a.mutex
	switch m.options.Otherwise {
	case dibs.RunAnyway:
		a.giveUp(ctx, a.place)
		m.tell(ctx, a, EventRanAnyway, nil)
		return a.once(ctx, fn)
	case dibs.GiveUp:
		if err := m.options.GaveUp(ctx, a.job, a.waited); err != nil {
			return a.refused(ctx, err)
		}
		a.giveUp(ctx, a.place)
		m.tell(ctx, a, EventGaveUp, nil)
		return nil
	default:
		m.tell(ctx, a, EventHeld, held)
		if a.job.last(held) || m.options.Failed == LetPass {
			a.giveUp(ctx, a.place)
		} else {
			// If this fails, the place stands for Recovery.
			_, _ = a.stand(ctx, a.absent(a.job.again(held)))
		}
		return held
	}
}
