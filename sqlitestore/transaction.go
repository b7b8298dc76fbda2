package sqlitestore

import (
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// transaction is the one transaction that the writing goroutine has open, and
// what is to happen when it is committed.
type transaction struct {
	s  *Store
	st *statements

	calls   []*call   // that it runs
	checked time.Time // when the file was last seen in its place

	committed int // how many there were

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
func (tx *transaction) begin(s *Store) error {
	tx.s, tx.st = s, s.st
	tx.dirty, tx.serial = false, 0
	tx.wakes, tx.joins, tx.leaves = tx.wakes[:0], tx.joins[:0], tx.leaves[:0]
	if err := s.checkFile(); err != nil {
		return err
	}
	meta := tx.st.meta
	defer meta.Reset()
	row, err := meta.Step()
	if err != nil {
		return err
	}
	if !row {
		return fmt.Errorf("%w: %w", ErrDamaged, errNoMeta)
	}
	if boot := meta.Bytes(0); string(boot) != s.boot {
		return errOtherBoot(string(boot))
	}
	tx.offset = meta.Int(1)
	// It is the same clock in all processes, which does not go back. Should it
	// ever (a moved virtual machine), store time stands until it has caught up.
	tx.now = max(s.clock.monotonic()+tx.offset, meta.Int(2))
	tx.fence = meta.Int(3)
	tx.others = tx.wrote != meta.Int(2)
	return nil
}

// apply runs one call. An error is one of the file: all is undone then.
func (tx *transaction) apply(c *call) error {
	clear(c.answers)
	clear(c.errs)
	for i := range c.claims {
		if err := tx.claim(&c.claims[i], &c.answers[i]); err != nil {
			return err
		}
	}
	for i := range c.renewals {
		if err := tx.renew(&c.renewals[i], &c.errs[i]); err != nil {
			return err
		}
	}
	for i := range c.settlements {
		if err := tx.settle(&c.settlements[i], &c.errs[i]); err != nil {
			return err
		}
	}
	if c.work != nil {
		return c.work(tx)
	}
	return nil
}

// commit makes the transaction durable.
func (tx *transaction) commit() error {
	if tx.dirty {
		set := tx.st.setMeta
		set.BindInt(1, tx.now)
		set.BindInt(2, tx.fence)
		if _, err := set.Run(); err != nil {
			return err
		}
		tx.wrote = tx.now
	}
	// From here on others can grant to those who wait, so they have to be known.
	tx.s.waiting.join(tx.joins)
	tx.committed++
	_, err := tx.st.commit.Run()
	return err
}

// tell does what is left to do when the transaction is durable.
func (tx *transaction) tell() {
	tx.s.waiting.leave(tx.leaves)
	tx.s.waiting.wake(tx.wakes)
}

// nextFence gives the next fence.
func (tx *transaction) nextFence() int64 {
	tx.fence = max(tx.fence+1, tx.s.clock.wall())
	tx.dirty = true
	return tx.fence
}

// use makes the key the one that is being worked on.
func (tx *transaction) use(key dibs.Key, asker dibs.Token) {
	tx.k = appendKey(tx.k[:0], key)
	tx.asker = asker
}

// wake has the token told to ask again: at once if it waits in this process, and
// through the file otherwise.
func (tx *transaction) wake(t dibs.Token) error {
	if t == tx.asker {
		return nil
	}
	if tx.s.waiting.has(t) || slices.ContainsFunc(tx.joins, func(w waiter) bool { return w.token == t }) {
		tx.wakes = append(tx.wakes, t)
		return nil
	}
	tx.dirty = true
	wake := tx.st.wake
	wake.BindBlob(1, t[:])
	_, err := wake.Run()
	return err
}

// appendKey appends the key as the file has it.
func appendKey(b []byte, key dibs.Key) []byte {
	b = append(b, byte(len(key.Namespace)))
	b = append(b, key.Namespace...)
	return append(b, key.Name...)
}

// parseKey reads what appendKey wrote.
func parseKey(b []byte) (dibs.Key, error) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return dibs.Key{}, fmt.Errorf("%w: it has a key of %d bytes without a whole namespace", ErrDamaged, len(b))
	}
	n := 1 + int(b[0])
	return dibs.Key{Namespace: string(b[1:n]), Name: string(b[n:])}, nil
}
