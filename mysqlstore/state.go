package mysqlstore

import (
	"math"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// lease is a lease, or an offer, of a key. Times are the server's, in microseconds.
type lease struct {
	token       dibs.Token
	fence       int64
	attempt     int64
	since, ends int64
	offered     bool
	once        bool
	inherits    bool
	seq         int64 // of the reserved place that it has taken; 0: none
	fingerprint dibs.Fingerprint
	owner       string
}

// record is what a key's last holder left behind, but for its data.
type record struct {
	token         dibs.Token
	written, ends int64 // ends is 0 when there is none
	fingerprint   dibs.Fingerprint
}

// row is a key's row. The lease of a key with one permit is in it, and of keys with
// more in rows of their own.
type row struct {
	there     bool // it is in the table
	fence     int64
	permits   int64
	busy      bool
	queued    bool
	saved     bool
	holder    lease
	abandoned int64
	lost      lease
	record    record
}

// state is a key that is being worked on. Whoever does so has its row locked, or
// only looks: it is loaded, changed in memory, and what is different then is
// written.
type state struct {
	k    string
	now  int64 // one moment for all that is done
	turn int64 // how long a waiter has to confirm its turn
	was  row

	fence     int64
	permits   int64
	holders   []lease
	abandoned int64
	lost      *lease // the last of them, until it has a successor
	record    record
	queue     queue

	saved  map[dibs.Token]bool  // who has saved progress; the zero token for what is passed on
	others map[dibs.Token]lease // holders in rows of their own, as they are there
	turns  []turn               // who has to be told something
	writes writes
}

func newState(k string) *state {
	return &state{k: k, turn: micros(dibs.Turn), saved: map[dibs.Token]bool{}, others: map[dibs.Token]lease{}}
}

// turn is what a waiter has to be told.
type turn struct {
	token  dibs.Token
	answer dibs.Answer // its State is zero when it should ask
}

// memory is how long an abandoned lease is remembered.
const memory = int64(dibs.AbandonedMemory / time.Microsecond)

// forever is when a place that a lease has taken runs out.
const forever = math.MaxInt64

// micros counts microseconds, rounded up.
func micros(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// duration is so many microseconds.
func duration(us int64) time.Duration {
	if us > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}

// unknown reports whether nobody may be granted before somebody resolves the key.
func (st *state) unknown() bool { return st.lost != nil && st.lost.once }

// holder returns the lease, or offer, of a token, or nil.
func (st *state) holder(t dibs.Token) *lease {
	for i := range st.holders {
		if st.holders[i].token == t {
			return &st.holders[i]
		}
	}
	return nil
}

// takeOut ends a lease, and nothing else, and returns it.
func (st *state) takeOut(t dibs.Token) lease {
	i := slices.IndexFunc(st.holders, func(l lease) bool { return l.token == t })
	l := st.holders[i]
	st.holders = slices.Delete(st.holders, i, i+1)
	return l
}

// clashes reports whether a holder does something else, beside that token itself.
func (st *state) clashes(f dibs.Fingerprint, but dibs.Token) bool {
	return slices.ContainsFunc(st.holders, func(l lease) bool { return l.token != but && l.fingerprint.Differs(f) })
}

// grant adds a lease, with the next fence.
func (st *state) grant(l lease) *lease {
	st.fence = max(st.fence+1, st.now)
	l.fence, l.attempt, l.since = st.fence, st.abandoned+1, st.now
	l.inherits = st.lost != nil && st.lost.inherits
	st.holders = append(st.holders, l)
	return &st.holders[len(st.holders)-1]
}

// abandon notes that a lease, which is no holder any more, ended then without being
// settled.
func (st *state) abandon(l lease, ended int64) {
	if st.saved[l.token] {
		st.passOn(l.token)
		l.inherits = true
	}
	seat := l.seq
	l.ends, l.seq = ended, 0
	st.abandoned++
	if st.lost == nil || st.lost.ends <= ended {
		st.lost = &l
	}
	if st.lost.once {
		for _, p := range st.queue.standing() {
			st.wake(p.token)
		}
	}
	st.standAgain(seat, ended)
}

// clean forgets what was abandoned: a lease came to a good end, or it is long ago.
func (st *state) clean(t dibs.Token) {
	st.abandoned, st.lost = 0, nil
	st.drop(t)
	if slices.ContainsFunc(st.holders, func(l lease) bool { return l.inherits }) {
		return
	}
	st.drop(dibs.Token{})
}

// undo ends a lease, which is no holder any more, as if it had not been granted.
func (st *state) undo(l lease) {
	st.drop(l.token)
	st.standAgain(l.seq, st.now)
	switch {
	case l.offered || st.lost != nil:
	case l.attempt == 1:
		st.clean(dibs.Token{})
	default:
		// It stands for those before it, which it cannot name.
		st.abandoned = l.attempt - 1
		l.ends, l.once, l.seq = st.now, false, 0
		st.lost = &l
	}
}

// advance lets time pass: what has run out is dead, and what that frees is handed
// over.
func (st *state) advance() error {
	for i := 0; i < len(st.holders); {
		if st.holders[i].ends > st.now {
			i++
			continue
		}
		if l := st.takeOut(st.holders[i].token); !l.offered {
			st.abandon(l, l.ends)
		}
	}
	st.tidy()
	if st.lost != nil && !st.lost.once && st.lost.ends+memory <= st.now {
		st.clean(dibs.Token{})
	}
	return st.handOver()
}

// handOver offers the key to those in front, as far as there are permits. A reserved
// place stops it.
func (st *state) handOver() error {
	for int64(len(st.holders)) < st.permits && !st.unknown() {
		p, err := st.front()
		if err != nil || p == nil {
			return err
		}
		if st.answers(p) {
			st.queue.remove(p.seq)
			st.wake(p.token)
			continue
		}
		if p.kind != waits {
			if p.kind == reserved {
				p.kind = called
				st.wake(p.token)
			}
			return nil
		}
		st.queue.remove(p.seq)
		if st.lost != nil && st.lost.fingerprint.Differs(p.fingerprint) {
			// It asks for something else than was abandoned, and is told so when it asks.
			st.wake(p.token)
			continue
		}
		// A grant that is told is a lease from now on: its holder may begin without
		// asking. What was abandoned takes an answer to tell, and so does that another
		// holder does something else.
		told := p.tells && st.lost == nil && !st.clashes(p.fingerprint, p.token)
		l := st.grant(lease{
			token: p.token, ends: st.now + st.turn, offered: !told, once: p.once,
			fingerprint: p.fingerprint, owner: p.owner,
		})
		if told {
			st.turns = append(st.turns, turn{p.token, grantOf(l)})
		} else {
			st.wake(p.token)
		}
	}
	return nil
}

// grantOf is how a lease is told.
func grantOf(l *lease) dibs.Answer {
	return dibs.Answer{State: dibs.Granted, Fence: uint64(l.fence), Attempt: int(l.attempt)}
}

// wake has those told who wait by that token that they should ask.
func (st *state) wake(t dibs.Token) { st.turns = append(st.turns, turn{token: t}) }

// leave writes a record.
func (st *state) leave(t dibs.Token, f dibs.Fingerprint, data []byte, retention int64) {
	st.record = record{token: t, written: st.now, ends: st.now + retention, fingerprint: f}
	st.writes.record(st.record.ends, data)
	st.answerAll()
}

// answerAll sends those whom a new record answers to read it.
func (st *state) answerAll() {
	if st.queue.empty() {
		return
	}
	for _, p := range slices.Clone(st.queue.standing()) {
		if p.maxAge > 0 {
			st.queue.remove(p.seq)
			st.wake(p.token)
		}
	}
	st.writes.answered = !st.queue.complete // there are more than we know of
}

// erase deletes the record.
func (st *state) erase() {
	if st.record.ends != 0 {
		st.record = record{}
		st.writes.eraseRecord()
	}
}

// save keeps a holder's progress.
func (st *state) save(t dibs.Token, data []byte) {
	st.saved[t] = true
	st.writes.progress(t, data)
}

// drop deletes what a token saved.
func (st *state) drop(t dibs.Token) {
	if st.saved[t] {
		delete(st.saved, t)
		st.writes.dropProgress(t)
	}
}

// passOn makes what a token saved that which its successors get.
func (st *state) passOn(t dibs.Token) {
	st.drop(dibs.Token{})
	delete(st.saved, t)
	st.saved[dibs.Token{}] = true
	st.writes.passProgressOn(t)
}

// row is the key's row as it is to be.
func (st *state) row() row {
	r := row{
		there: true, fence: st.fence, permits: st.permits, queued: !st.queue.empty(), saved: len(st.saved) > 0,
		abandoned: st.abandoned, record: st.record,
	}
	if st.lost != nil {
		r.lost = *st.lost
	}
	if st.permits == 1 && len(st.holders) > 0 {
		r.holder = st.holders[0]
		r.holder.fence = 0 // that of the row is its
	}
	h := &r.holder
	r.busy = r.queued || r.saved || r.abandoned > 0 || st.lost != nil || st.permits > 1 && len(st.holders) > 0 ||
		h.offered || h.inherits || h.seq != 0
	return r
}
