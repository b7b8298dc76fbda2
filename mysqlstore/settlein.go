package mysqlstore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
)

// What can be wrong with a transaction of the application.
var (
	// ErrEnded: the run has ended the transaction by itself, or the server has because
	// of a deadlock and the run went on. What it did may be committed, in part, and its
	// answer is not kept.
	ErrEnded = fmt.Errorf("%w (COMMIT, ROLLBACK, a statement that commits such as ALTER TABLE, or a deadlock whose error was not returned), so its answer is not kept: leave that to dibs, and return errors", dibs.ErrEnded)
	// ErrOtherDatabase: what was given to Transactions is not of the server that the
	// store is on.
	ErrOtherDatabase = errors.New("mysqlstore: the transactions are not on the store's server: an answer could not be committed with its effect; give Transactions a pool of the server that the store was opened on, and not of a replica")
)

// What the server says when a settlement fails.
const (
	codeNoSavepoint = 1305 // the transaction is not the one that was begun
	codeNotHeld     = 1690 // the guard's number is out of range
)

// surelyBefore are errors that only statements before a COMMIT end with, and those
// which mean of a COMMIT too that all was rolled back.
var surelyBefore = map[uint16]bool{
	1213: true, 1205: true, 1020: true, 3101: true, // conflicts
	1044: true, 1142: true, 1143: true, // rights
	1146: true, 1054: true, 1064: true, // tables
	1792: true, // a read-only transaction
	1153: true, // too large
}

const (
	// moment is the server's time when a row is looked at, after its lock is had:
	// SYSDATE goes on while a statement waits. The difference of the two does without
	// the session's time zone, and holds where the session has its clock stopped.
	moment = "(" + clock + "+GREATEST(0,TIMESTAMPDIFF(MICROSECOND,NOW(6),SYSDATE(6))))"

	// guard fails when the statement before it has changed nothing. Unlike DO, SET
	// passes errors on.
	guard = "SET @dibs_held=EXP(IF(ROW_COUNT()>0,0,10000))"

	// catchUpLimit bounds what is done after a settlement for those who wait.
	catchUpLimit = 2 * time.Second
)

// cleared are the columns of a key that has been settled.
const cleared = "abandoned,lost_token,lost_fence,lost_attempt,lost_since,lost_ends,lost_once,lost_inherits,lost_fingerprint,lost_owner"

// settlement is the statements that settle in a transaction: numbers, bytes in
// hexadecimal and names, so that they mean the same whatever the session has set.
type settlement struct {
	// release fails unless the transaction is the one that was begun.
	release string
	// settle ends the lease of a key with one permit, and writes down what there is to
	// know of the record. It changes a row if the token holds the key; LAST_INSERT_ID
	// is then whether there is something left to do when it is committed.
	settle string
	// settleMany does the same for a key with several.
	settleMany string
	// record writes the record's data; "" when there is none.
	record string
}

// whole returns all of them in one text that commits, and then tells whether there is
// something left to do. It ends at the first that fails.
func (c *settlement) whole(m manner) string {
	all := []string{c.release, c.settle, guard}
	if c.record != "" {
		all = append(all, c.record)
	}
	all = append(all, "COMMIT", "SELECT LAST_INSERT_ID()<>0")
	text := strings.Join(all, ";\n")
	if m == block {
		return "BEGIN NOT ATOMIC\n" + text + ";\nEND"
	}
	return text
}

// settleIn returns the statements that settle in a transaction with that mark.
//
// The lease and the record are written there, which is all that has to be there. Who
// waits, and what the lease has saved, is seen to by catchUp afterwards, or whoever
// next works on the key: a transaction of the application may have a snapshot, and not
// see them.
func (s *Store) settleIn(x *dibs.Settlement, mark string) (*settlement, error) {
	if err := x.Validate(); err != nil {
		return nil, err
	}
	keep := x.Outcome == dibs.Keep
	switch {
	case keep:
		if err := s.fitsIn(x.Data); err != nil {
			return nil, err
		}
	case x.Outcome != dibs.Release:
		return nil, errors.New("mysqlstore: a transaction keeps or releases; what is abandoned or undone is rolled back")
	}
	k := keyOf(x.Key)
	c := &settlement{release: "RELEASE SAVEPOINT " + mark}

	one := (&script{}).raw(s.in("UPDATE @key SET busy=LAST_INSERT_ID(GREATEST(queued,saved))"))
	if keep {
		one.raw(",rec_token=").token(&x.Token).raw(",rec_written=" + moment + ",rec_ends=" + moment + "+").int(micros(x.Retention)).raw(",rec_fingerprint=fingerprint")
	}
	for name := range strings.SplitSeq("attempt,since,ends,once,inherits,seq,fingerprint,owner,token,"+cleared, ",") {
		one.raw("," + name + "=DEFAULT")
	}
	one.raw(" WHERE k=").bytes(k).raw(" AND permits=1 AND token=").token(&x.Token).raw(" AND offered=0 AND ends>" + moment)
	c.settle = string(one.text)

	// An offer that has run out leaves nothing behind when it is next looked at.
	many := (&script{}).raw(s.in("UPDATE @key x JOIN @holder h ON h.k=x.k SET x.busy=1,h.offered=1,h.ends=0"))
	if keep {
		many.raw(",x.rec_token=").token(&x.Token).raw(",x.rec_written=" + moment + ",x.rec_ends=" + moment + "+").int(micros(x.Retention)).raw(",x.rec_fingerprint=h.fingerprint")
	}
	for name := range strings.SplitSeq(cleared, ",") {
		many.raw(",x." + name + "=DEFAULT(x." + name + ")")
	}
	many.raw(" WHERE x.k=").bytes(k).raw(" AND x.permits>1 AND h.token=").token(&x.Token).raw(" AND h.offered=0 AND h.ends>" + moment)
	c.settleMany = string(many.text)

	if keep {
		record := (&script{}).raw(s.in("INSERT INTO @record (k,ends,data) VALUES (")).bytes(k)
		record.raw(s.in(",(SELECT rec_ends FROM @key WHERE k=")).bytes(k).raw("),").bytes(string(x.Data))
		record.raw(") ON DUPLICATE KEY UPDATE ends=VALUES(ends),data=VALUES(data)")
		c.record = string(record.text)
	}
	return c, nil
}

// fitsIn returns an error when a record is too large to be kept in a transaction.
func (s *Store) fitsIn(data []byte) error {
	if err := s.fits(data); err != nil {
		return err
	}
	if n := 2*len(data) + besides; n > s.packet {
		return fmt.Errorf("%w: %d bytes take twice as much in a transaction, which does not fit into the server's max_allowed_packet of %d; raise it", dibs.ErrTooLarge, len(data), s.packet)
	}
	return nil
}

// in is sql with the database in front of the names.
func (s *Store) in(text string) string {
	return s.names.within("`"+strings.ReplaceAll(s.config.DBName, "`", "``")+"`.", text)
}

// conflicts reports whether an error says that a transaction fell victim to another
// one.
func conflicts(err error) bool {
	switch code(err) {
	case 1213, // deadlock
		1205, // a row was locked for too long
		1020, // a row has changed since the transaction's snapshot
		3101: // group replication rolled it back
		return true
	}
	return false
}

// newMark returns what a transaction is recognized by.
func newMark() string {
	t := dibs.NewToken()
	return "dibs_" + hex.EncodeToString(t[:])
}

// markSQL marks the transaction that was just begun. A savepoint ends with it, however
// it ends.
func markSQL(mark string) string { return "SAVEPOINT " + mark }

// catchUp sees to what a settlement in a transaction has left to do. If it fails,
// whoever next works on the key does that; those who wait find out by asking.
func (s *Store) catchUp(ctx context.Context, key dibs.Key, token dibs.Token) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), catchUpLimit)
	defer cancel()
	k := keyOf(key)
	_ = try(ctx, func() error {
		b := s.newBatch(nil, locking)
		b.want(k, token)
		return s.work(ctx, s.back, b, map[string]bool{k: true}, func() error {
			st := b.states[k]
			if st.record.token == token && st.record.ends > st.now {
				st.answerAll()
			}
			return st.advance()
		})
	})
}

// answers reports whether the record answers a waiter. It does so only after a
// settlement in a transaction of the application's: others have answered them all.
func (st *state) answers(p *place) bool {
	return p.maxAge > 0 && st.record.ends > st.now && st.record.written >= st.now-p.maxAge
}

// tidy ends what a lease that was settled in a transaction of the application's has
// left: the place that it had taken, and what it saved.
func (st *state) tidy() {
	for _, p := range slices.Clone(st.queue.places) {
		if p.kind >= taken && !slices.ContainsFunc(st.holders, func(l lease) bool { return l.seq == p.seq }) {
			st.giveUp(p.seq)
		}
	}
	inherits := st.lost != nil || slices.ContainsFunc(st.holders, func(l lease) bool { return l.inherits })
	for t := range st.saved {
		if t.IsZero() && !inherits || !t.IsZero() && st.holder(t) == nil {
			st.drop(t)
		}
	}
}
