package sqlitestore

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// transaction is the one transaction that the writing goroutine has open, and
// what is to happen when it is committed.
type transaction struct {
	s  *Store
	st statements

	calls   []*call   // that it runs
	checked time.Time // when the file was last seen in its place

	committed int // how many there were

	err    error // the first one; nothing is run after it, and all is undone
	now    int64 // store time, the same for all of the transaction
	offset int64 // store time - the host's time since boot
	fence  int64 // the highest fence given
	dirty  bool  // something was written

	wrote  int64 // the clock in the file as this Store left it
	others bool  // another one has written since

	k     []byte     // the key that is being worked on, as the file has it
	asker dibs.Token // who asks; it needs no waking
	state keyState   // of k, used again for each key

	serial int64        // makes the ids of records differ; starts anew each time
	wakes  []dibs.Token // to be woken in this process
	joins  []waiter     // who waits in this process from now on
	leaves []dibs.Token // who does not any more
}

// begin reads the meta row of the transaction that the file has just been locked
// for.
func (tx *transaction) begin(s *Store) {
	tx.s, tx.st = s, s.st
	tx.dirty, tx.serial = false, 0
	tx.wakes, tx.joins, tx.leaves = tx.wakes[:0], tx.joins[:0], tx.leaves[:0]
	tx.err = s.checkFile()
	boot := ""
	found := tx.get("meta", func(row *lite.Stmt) {
		boot = string(row.Bytes(0))
		tx.offset = row.Int(1)
		// It is the same clock in all processes, which does not go back. Should it
		// ever (a moved virtual machine), store time stands until it has caught up.
		tx.now = max(s.clock.monotonic()+tx.offset, row.Int(2))
		tx.others = tx.wrote != row.Int(2)
		tx.fence = row.Int(3)
	})
	switch {
	case tx.err != nil:
	case !found:
		tx.err = fmt.Errorf("%w: %w", ErrDamaged, errNoMeta)
	case boot != s.boot:
		tx.err = errOtherBoot(boot)
	}
}

// get runs a statement up to its first row, calls f with it, unless that is nil, and
// reports whether there was one.
func (tx *transaction) get(name string, f func(*lite.Stmt), args ...any) (found bool) {
	if tx.err == nil {
		tx.err = tx.st[name].Each(func(row *lite.Stmt) bool {
			if found = true; f != nil {
				f(row)
			}
			return false
		}, args...)
	}
	return found
}

// rows runs a statement.
func (tx *transaction) rows(name string, args ...any) iter.Seq[*lite.Stmt] {
	return func(yield func(*lite.Stmt) bool) {
		if tx.err == nil {
			tx.err = tx.st[name].Each(yield, args...)
		}
	}
}

// change runs a statement that writes, and returns how many rows it changed.
func (tx *transaction) change(name string, args ...any) int {
	if tx.err == nil {
		tx.err = tx.st[name].Run(args...)
	}
	if tx.err != nil {
		return 0
	}
	n := tx.s.conn.Changes()
	tx.dirty = tx.dirty || n > 0
	return n
}

// apply runs one call.
func (tx *transaction) apply(c *call) {
	clear(c.answers)
	clear(c.errs)
	for i := range c.claims {
		tx.claim(&c.claims[i], &c.answers[i])
	}
	for i := range c.renewals {
		tx.renew(&c.renewals[i], &c.errs[i])
	}
	for i := range c.settlements {
		tx.settle(&c.settlements[i], &c.errs[i])
	}
	if c.work != nil && tx.err == nil {
		c.work(tx)
	}
}

// commit makes the transaction durable.
func (tx *transaction) commit() {
	if tx.dirty {
		tx.change("setMeta", tx.now, tx.fence)
		tx.wrote = tx.now
	}
	if tx.err == nil {
		// From here on others can serve those who wait, so they have to be known.
		tx.s.waiting.join(tx.joins)
		tx.committed++
		tx.err = tx.st["commit"].Run()
	}
}

// tell does what is left to do when the transaction is durable.
func (tx *transaction) tell() {
	tx.s.waiting.leave(tx.leaves)
	tx.s.waiting.wake(tx.wakes)
}

// nextFence gives the next fence.
func (tx *transaction) nextFence() int64 {
	tx.fence = max(tx.fence+1, tx.s.clock.wall())
	return tx.fence
}

// use makes the key the one that is being worked on.
func (tx *transaction) use(key dibs.Key, asker dibs.Token) {
	tx.k = backend.AppendKey(tx.k[:0], key)
	tx.asker = asker
}

// wake has the token told to ask again: at once if it waits in this process, and
// through the file otherwise.
func (tx *transaction) wake(t dibs.Token) {
	switch {
	case t == tx.asker:
	case tx.s.waiting.has(t) || slices.ContainsFunc(tx.joins, func(w waiter) bool { return w.token == t }):
		tx.wakes = append(tx.wakes, t)
	default:
		tx.change("wake", t[:])
	}
}
