package sqlitestore

import (
	"fmt"
	"iter"
	"slices"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

// transaction is the open transaction of the writing goroutine.
type transaction struct {
	s  *Store
	st statements

	calls []*call

	committed int // transactions so far

	err    error // the first error; after it no statement runs, and everything is undone
	now    int64 // store time of the transaction
	offset int64 // store time - the host's time since boot
	fence  int64 // the highest fence given
	dirty  bool  // it has written something

	wrote  int64 // the file's clock after this Store's last write
	others bool  // another Store has written since

	k         []byte      // the current key, as stored
	asker     store.Token // the current token; it is not woken
	idleSince int64       // of the current key, as it was loaded

	serial int64         // for ids of records; starts at 0 in each transaction
	wakes  []store.Token // to wake in this process
	joins  []waiter      // new waiters in this process
	leaves []store.Token // tokens that no longer wait
}

// begin reads the meta row, after the file was locked.
func (tx *transaction) begin(s *Store) {
	tx.s, tx.st = s, s.st
	tx.dirty, tx.serial = false, 0
	tx.wakes, tx.joins, tx.leaves = tx.wakes[:0], tx.joins[:0], tx.leaves[:0]
	tx.err = s.names.check()
	boot := ""
	found := tx.get("meta", func(row *lite.Stmt) {
		boot = string(row.Bytes(0))
		tx.offset = row.Int(1)
		// All processes share this clock, and it does not go back. If it ever does (a
		// moved virtual machine), store time stops until it has caught up.
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

// get runs a statement and calls f, which may be nil, with its first row. It reports
// whether there was one.
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

// rows runs a statement and yields its rows.
func (tx *transaction) rows(name string, args ...any) iter.Seq[*lite.Stmt] {
	return func(yield func(*lite.Stmt) bool) {
		if tx.err == nil {
			tx.err = tx.st[name].Each(yield, args...)
		}
	}
}

// change runs a statement that writes, and returns the number of changed rows.
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

func (tx *transaction) commit() {
	if tx.dirty {
		tx.change("setMeta", tx.now, tx.fence)
		tx.wrote = tx.now
	}
	if tx.err == nil {
		// After the commit other processes may wake these waiters, so they are added first.
		tx.s.waiting.join(tx.joins)
		tx.committed++
		tx.err = tx.st["commit"].Run()
	}
}

// notify wakes and removes waiters after the commit.
func (tx *transaction) notify() {
	tx.s.waiting.leave(tx.leaves)
	tx.s.waiting.wake(tx.wakes)
}

func (tx *transaction) nextFence() int64 {
	tx.fence = max(tx.fence+1, tx.s.clock.wall())
	return tx.fence
}

// use makes the key the current one.
func (tx *transaction) use(key store.Key, asker store.Token) {
	tx.k = storekit.AppendKey(tx.k[:0], key)
	tx.asker = asker
}

// wake lets a token ask again: directly if it waits in this process, otherwise through
// the table wake.
func (tx *transaction) wake(t store.Token) {
	switch {
	case t == tx.asker:
	case tx.s.waiting.has(t) || slices.ContainsFunc(tx.joins, func(w waiter) bool { return w.token == t }):
		tx.wakes = append(tx.wakes, t)
	default:
		tx.change("wake", t[:])
	}
}
