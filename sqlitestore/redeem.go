package sqlitestore

import (
	"math"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// The values of waiter.dormant, beyond 0 for a place that is offered the key.
const (
	reserved = 1
	called   = 2 // reserved, and told that its turn has come
	taken    = 3 // by the lease with its seq
	sought   = 4 // taken, and others claimed from it meanwhile
)

// never is when a place that a lease has taken runs out.
const never = math.MaxInt64

// redeemerAsks is for how long a token that claims from a place is taken to wait
// for it: longer than until it asks again.
const redeemerAsks = 5 * time.Second

// spot is where a token stands in the queue, or would; a seq of 0 means nowhere.
type spot struct {
	seq     int64
	until   int64
	dormant int64
}

// alive reports whether there is a place. One that is taken is.
func (p *spot) alive(now int64) bool { return p.seq != 0 && p.until > now }

// redeemed finds the place that a claim is made from: the reserved one that it
// redeems, or, when there is none, its token's own.
func (tx *transaction) redeemed(ks *keyState, c *dibs.Claim) (p spot, redeems bool, err error) {
	if !ks.hasFront && !ks.takes() {
		return p, false, nil
	}
	if !c.Redeems.IsZero() {
		p, err = tx.findWaiter(c.Redeems)
		if err != nil || p.alive(tx.now) && p.dormant != 0 {
			return p, err == nil, err
		}
	}
	p, err = tx.findWaiter(c.Token)
	return p, false, err
}

// takes reports whether a lease has taken a place.
func (ks *keyState) takes() bool {
	return slices.ContainsFunc(ks.live, func(l lease) bool { return l.state == held && l.seq != 0 })
}

// redeem grants the key to a claim from a reserved place, whose turn it is.
func (tx *transaction) redeem(ks *keyState, p *spot, c *dibs.Claim, a *dibs.Answer) error {
	own, err := tx.findWaiter(c.Token)
	if err != nil {
		return err
	}
	if own.seq != 0 {
		if err := tx.giveUpPlace(own.seq); err != nil {
			return err
		}
	}
	if err := tx.takePlace(p.seq, c.Hold); err != nil {
		return err
	}
	l := tx.leaseFor(c)
	l.seq = p.seq
	tx.leaves = append(tx.leaves, c.Redeems)
	return tx.take(ks, l, c, a)
}

// takePlace notes that a lease takes a place, which has that Hold from now on, unless
// it is 0. It begins to count anew when the place stands again.
func (tx *transaction) takePlace(seq int64, hold time.Duration) error {
	tx.dirty = true
	st := tx.st.takePlace
	st.BindBlob(1, tx.k)
	st.BindInt(2, seq)
	st.BindInt(3, never)
	st.BindInt(4, micros(hold))
	_, err := st.Run()
	return err
}

// canPress reports whether the first place keeps others from a permit that is free,
// and will run out sooner when it is first noticed to do so.
func (ks *keyState) canPress() bool {
	p := &ks.front
	return ks.hasFront && p.dormant != 0 && p.hold > 0 && !p.pressed && int64(len(ks.live)) < p.permits
}

// waitForTaken answers a token whose place, or the place that it claims from, a
// lease has taken.
func (tx *transaction) waitForTaken(ks *keyState, p *spot, redeems bool, c *dibs.Claim, a *dibs.Answer) error {
	if p.dormant == taken {
		if err := tx.setDormant(p.seq, sought, never); err != nil {
			return err
		}
	}
	if c.Redeems.IsZero() && c.Place > 0 {
		tx.dirty = true
		st := tx.st.setLasts
		st.BindBlob(1, tx.k)
		st.BindInt(2, p.seq)
		st.BindInt(3, micros(c.Place))
		hold := int64(-1) // as before
		if c.Mode == dibs.Reserve {
			hold = micros(c.Hold)
		}
		st.BindInt(4, hold)
		if _, err := st.Run(); err != nil {
			return err
		}
	}
	token := c.Token
	if redeems {
		token = c.Redeems
	}
	err := tx.inQueue(ks, p.seq, c, a, &waitingFor{token: token, place: redeemerAsks})
	a.Idle = false // it waits for a lease
	return err
}

// standAgain puts the place that a lease had taken, which ended then, back where
// it was. A lease without one has a seq of 0.
func (tx *transaction) standAgain(l *lease, then int64) error {
	if l.seq == 0 {
		return nil
	}
	st := tx.st.standAgain
	st.BindBlob(1, tx.k)
	st.BindInt(2, l.seq)
	st.BindInt(3, then)
	_, err := st.Run()
	return err
}

// giveUpPlace ends a place, also one that a lease has taken, and tells those who
// claim from it.
func (tx *transaction) giveUpPlace(seq int64) error {
	st := tx.st.giveUpPlace
	st.BindBlob(1, tx.k)
	st.BindInt(2, seq)
	row, err := st.Step()
	if err != nil || !row {
		st.Reset()
		return err
	}
	tx.dirty = true
	token, dormant := dibs.Token(st.Bytes(0)), st.Int(1)
	_, err = st.Step() // the rest of the statement
	st.Reset()
	if err == nil && dormant == sought {
		err = tx.wakePlace(token)
	}
	return err
}

func (tx *transaction) setDormant(seq, dormant, until int64) error {
	tx.dirty = true
	st := tx.st.setDormant
	st.BindBlob(1, tx.k)
	st.BindInt(2, seq)
	st.BindInt(3, dormant)
	st.BindInt(4, until)
	_, err := st.Run()
	return err
}

// wakePlace has all told that wait at a reserved place, in whatever processes.
func (tx *transaction) wakePlace(t dibs.Token) error {
	if tx.s.waiting.has(t) || tx.joined(t) {
		tx.wakes = append(tx.wakes, t)
	}
	return tx.wakeOthers(t)
}
