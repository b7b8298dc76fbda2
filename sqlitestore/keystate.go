package sqlitestore

import (
	"cmp"
	"slices"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// The states of a lease row.
const (
	held      = 0
	offered   = 1
	abandoned = 2
	unknown   = 3
	noted     = 4 // settled, at until, in a transaction of the application
)

// memory is how long an abandoned lease is remembered, in microseconds.
const memory = int64(dibs.AbandonedMemory / 1000)

// lease is a row of the table lease.
type lease struct {
	token       dibs.Token
	state       int64
	until       int64
	fence       int64
	since       int64
	attempt     int64
	permits     int64
	plain       bool
	once        bool
	fingerprint dibs.Fingerprint
	owner       string
	seq         int64
}

// waiter is a row of the table waiter.
type waiter struct {
	seq         int64
	token       dibs.Token
	until       int64
	dormant     int64
	permits     int64
	once        bool
	maxAge      int64
	fingerprint dibs.Fingerprint
	owner       []byte
	hold        int64 // 0: as long as it stands
	pressed     bool  // it runs out when that is over
}

// keyState is what the file knows about one key, but for its record and all but
// the first of its waiters.
type keyState struct {
	live []lease // that have not run out, offers among them

	// gone is the last lease that was abandoned, or whose outcome is unknown. It
	// stays while its successor runs, which it then gives an attempt number and
	// progress to, and ends with the first clean end of a lease.
	gone    lease
	hasGone bool

	ran []lease // ran out, or were settled elsewhere, since somebody last looked; see tidy

	front    waiter // the first place, alive
	hasFront bool
}

// load reads the leases of the key, and changes nothing.
func (tx *transaction) load() (*keyState, error) {
	ks := &tx.state
	*ks = keyState{live: ks.live[:0], ran: ks.ran[:0]}
	st := tx.st.leases
	st.BindBlob(1, tx.k)
	defer st.Reset()
	for {
		row, err := st.Step()
		if err != nil {
			return nil, err
		}
		if !row {
			return ks, nil
		}
		l := lease{
			state: st.Int(1), until: st.Int(2), fence: st.Int(3), since: st.Int(4), attempt: st.Int(5),
			permits: st.Int(6), plain: st.Bool(7), once: st.Bool(8), owner: string(st.Bytes(10)), seq: st.Int(11),
		}
		copy(l.token[:], st.Bytes(0))
		copy(l.fingerprint[:], st.Bytes(9))
		switch {
		case l.state == abandoned || l.state == unknown:
			ks.gone, ks.hasGone = l, true
		case l.state != noted && l.until > tx.now:
			ks.live = append(ks.live, l)
		default:
			ks.ran = append(ks.ran, l)
		}
	}
}

// tidy writes down what has happened by itself: leases ran out, or were settled in
// transactions of the application, and what was abandoned long ago is forgotten. It
// does so in the order in which it happened: a settlement offers the key to those
// whose turn it was then, although others have ended since.
func (tx *transaction) tidy(ks *keyState) error {
	slices.SortFunc(ks.ran, func(a, b lease) int { return cmp.Compare(a.until, b.until) })
	all := ks.ran
	for _, l := range all {
		ks.ran = ks.ran[1:]
		var err error
		switch l.state {
		case offered:
			// Its turn is over. Nobody did anything, so nothing was abandoned.
			err = tx.deleteLease(&l)
		case noted:
			if err = tx.applyNote(ks, l); err == nil {
				err = tx.advance(ks)
			}
		default:
			err = tx.abandon(ks, l, l.until)
		}
		if err != nil {
			return err
		}
	}
	ks.ran = all[:0]
	if ks.hasGone && ks.gone.state == abandoned && ks.gone.until+memory <= tx.now && len(ks.live) == 0 {
		return tx.forget(ks)
	}
	return nil
}

// abandon makes a lease that is no longer among the live ones the key's last
// abandoned one.
func (tx *transaction) abandon(ks *keyState, l lease, at int64) error {
	if err := tx.standAgain(&l, at); err != nil {
		return err
	}
	l.attempt = 1
	if ks.hasGone {
		l.attempt = ks.gone.attempt + 1
		// What the one before saved is not undone by one that saved nothing. If
		// it did, the statement leaves its progress alone.
		tx.st.renameProgress.BindBlob(3, l.token[:])
		if err := run2(tx.st.renameProgress, tx.k, ks.gone.token[:]); err != nil {
			return err
		}
		if err := tx.forget(ks); err != nil {
			return err
		}
	}
	l.state, l.until = abandoned, at
	if l.once {
		l.state = unknown
	}
	ks.gone, ks.hasGone = l, true
	tx.dirty = true
	st := tx.st.abandonLease
	st.BindBlob(1, tx.k)
	st.BindBlob(2, l.token[:])
	st.BindInt(3, l.state)
	st.BindInt(4, l.until)
	st.BindInt(5, l.attempt)
	_, err := st.Run()
	return err
}

// forget deletes the abandoned lease.
func (tx *transaction) forget(ks *keyState) error {
	if !ks.hasGone {
		return nil
	}
	ks.hasGone = false
	return tx.deleteLease(&ks.gone)
}

// deleteLease deletes a lease and what it saved.
func (tx *transaction) deleteLease(l *lease) error {
	tx.dirty = true
	if err := run2(tx.st.deleteLease, tx.k, l.token[:]); err != nil || l.plain {
		return err
	}
	return run2(tx.st.deleteProgress, tx.k, l.token[:])
}

// remove takes a lease out of the live ones.
func (ks *keyState) remove(t dibs.Token) {
	ks.live = slices.DeleteFunc(ks.live, func(l lease) bool { return l.token == t })
}

// holder returns the token's lease, or offer, or nil.
func (ks *keyState) holder(t dibs.Token) *lease {
	for i := range ks.live {
		if ks.live[i].token == t {
			return &ks.live[i]
		}
	}
	return nil
}

// last returns the abandoned lease unless a successor has taken it up.
func (ks *keyState) last() *lease {
	if !ks.hasGone {
		return nil
	}
	for i := range ks.live {
		if ks.live[i].state == held && ks.live[i].fence > ks.gone.fence {
			return nil
		}
	}
	return &ks.gone
}

// unknown reports whether nobody may be granted before somebody resolves the
// key.
func (ks *keyState) unknown() bool { return ks.hasGone && ks.gone.state == unknown }

// permits returns the number that those who hold the key or wait for it agreed
// on, or 0.
func (ks *keyState) permits() int64 {
	switch {
	case len(ks.live) > 0:
		return ks.live[0].permits
	case ks.hasFront:
		return ks.front.permits
	}
	return 0
}

// differs reports whether the fingerprint is not that of whoever holds the key
// or abandoned it last. The token's own offer does not count.
func (ks *keyState) differs(t dibs.Token, f dibs.Fingerprint) bool {
	for i := range ks.live {
		if ks.live[i].token != t && ks.live[i].fingerprint.Differs(f) {
			return true
		}
	}
	gone := ks.last()
	return gone != nil && gone.fingerprint.Differs(f)
}

// advance offers the key to the places at the head of the queue as far as there
// are permits, skipping dead ones, and finds out who is first then. A reserved
// place stops it, and is woken once its turn has come.
func (tx *transaction) advance(ks *keyState) error {
	for {
		if err := tx.readFront(ks); err != nil || !ks.hasFront {
			return err
		}
		w := &ks.front
		// While tidy is not done, the leases that are left ended later: they still count.
		holders := int64(len(ks.live) + len(ks.ran))
		free := !ks.unknown() && (holders == 0 || holders < w.permits)
		gone := ks.last()
		if gone != nil && slices.ContainsFunc(ks.ran, func(l lease) bool { return l.state != offered && l.fence > gone.fence }) {
			gone = nil // one of them has taken it up
		}
		switch {
		case w.until <= tx.now:
			if err := tx.deleteWaiter(w.seq); err != nil {
				return err
			}
		case !free || w.dormant == called:
			return nil
		case w.dormant == reserved:
			if err := tx.setDormant(w.seq, called, w.until); err != nil {
				return err
			}
			return tx.wakePlace(w.token)
		case gone != nil && gone.fingerprint.Differs(w.fingerprint):
			// It asks for something else than was abandoned. It cannot be
			// granted, and is woken to be told so.
			if err := tx.deleteWaiter(w.seq); err != nil {
				return err
			}
			if err := tx.wake(w.token); err != nil {
				return err
			}
		default:
			if err := tx.offer(ks, w); err != nil {
				return err
			}
		}
	}
}

// readFront reads the first place, be it alive or dead.
func (tx *transaction) readFront(ks *keyState) error {
	st := tx.st.frontWaiter
	st.BindBlob(1, tx.k)
	return readWaiter(st, ks)
}

// readWaiter reads a place with a statement that selects one.
func readWaiter(st *lite.Stmt, ks *keyState) error {
	defer st.Reset()
	row, err := st.Step()
	ks.hasFront = row
	if err != nil || !row {
		return err
	}
	w := waiter{
		seq: st.Int(0), until: st.Int(2), dormant: st.Int(3), permits: st.Int(4), once: st.Bool(5),
		maxAge: st.Int(6), owner: append(ks.front.owner[:0], st.Bytes(8)...), hold: st.Int(9), pressed: st.Bool(10),
	}
	copy(w.token[:], st.Bytes(1))
	copy(w.fingerprint[:], st.Bytes(7))
	ks.front = w
	return nil
}

// offer grants the key to a waiter, which has dibs.Turn to confirm that.
func (tx *transaction) offer(ks *keyState, w *waiter) error {
	if err := tx.deleteWaiter(w.seq); err != nil {
		return err
	}
	l := lease{
		token: w.token, state: offered, until: tx.now + micros(tx.s.opt.turn), permits: w.permits,
		once: w.once, fingerprint: w.fingerprint, owner: string(w.owner), seq: w.seq,
	}
	if _, err := tx.grant(ks, l); err != nil {
		return err
	}
	return tx.wake(w.token)
}

// grant adds a lease, with the next fence, to the live ones.
func (tx *transaction) grant(ks *keyState, l lease) (*lease, error) {
	l.fence, l.since, l.attempt = tx.nextFence(), tx.now, 1
	if ks.hasGone {
		l.attempt = ks.gone.attempt + 1
	}
	l.plain = l.permits == 1 && l.attempt == 1
	if ks.hasGone && ks.gone.token == l.token {
		// The token ran out and asks again. Its abandoned lease makes room for
		// the new one under a name that nobody has.
		if err := tx.rename(ks); err != nil {
			return nil, err
		}
	}
	if err := tx.insertLease(&l); err != nil {
		return nil, err
	}
	ks.live = append(ks.live, l)
	return &ks.live[len(ks.live)-1], nil
}

func (tx *transaction) insertLease(l *lease) error {
	tx.dirty = true
	st := tx.st.insertLease
	st.BindBlob(1, tx.k)
	st.BindBlob(2, l.token[:])
	st.BindInt(3, l.state)
	st.BindInt(4, l.until)
	st.BindInt(5, l.fence)
	st.BindInt(6, l.since)
	st.BindInt(7, l.attempt)
	st.BindInt(8, l.permits)
	st.BindBool(9, l.plain)
	st.BindBool(10, l.once)
	bindFingerprint(st, 11, &l.fingerprint)
	st.BindString(12, l.owner)
	st.BindInt(13, l.seq)
	_, err := st.Run()
	return err
}

// rename gives the abandoned lease another token.
func (tx *transaction) rename(ks *keyState) error {
	name := dibs.NewToken()
	for _, st := range []*lite.Stmt{tx.st.renameLease, tx.st.renameProgress} {
		st.BindBlob(3, name[:])
		if err := run2(st, tx.k, ks.gone.token[:]); err != nil {
			return err
		}
	}
	ks.gone.token = name
	return nil
}

func (tx *transaction) deleteWaiter(seq int64) error {
	tx.dirty = true
	st := tx.st.deleteWaiter
	st.BindBlob(1, tx.k)
	st.BindInt(2, seq)
	_, err := st.Run()
	return err
}

// run2 runs a statement whose first two parameters are blobs.
func run2(st *lite.Stmt, a, b []byte) error {
	st.BindBlob(1, a)
	st.BindBlob(2, b)
	_, err := st.Run()
	return err
}

// bindFingerprint binds a fingerprint, an empty blob when there is none.
func bindFingerprint(st *lite.Stmt, i int, f *dibs.Fingerprint) {
	if f.IsZero() {
		st.BindBlob(i, nil)
		return
	}
	st.BindBlob(i, f[:])
}
