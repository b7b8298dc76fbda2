package sqlitestore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// page is how many keys List reads in one look.
const page = 64

// List implements dibs.Inspector. It looks at some keys at a time, each time in a
// transaction that it shares with the calls made meanwhile.
func (s *Store) List(ctx context.Context, q dibs.Query) iter.Seq2[dibs.Entry, error] {
	return func(yield func(dibs.Entry, error) bool) {
		low, high, one := keyRange(&q)
		for more := true; more; {
			var entries []dibs.Entry
			next := low
			err := s.work(ctx, func(tx *transaction) (err error) {
				entries, next, more = nil, low, false
				keys := [][]byte{one}
				if one == nil {
					if keys, err = tx.nextKeys(tx.st.allKeys, low, high, page); err != nil {
						return err
					}
					if more = len(keys) == page; more {
						next = keys[page-1]
					}
				}
				entries, err = tx.describeAll(keys, &q)
				return err
			})
			if err != nil {
				yield(dibs.Entry{}, err)
				return
			}
			low = next
			for i := range entries {
				if !yield(entries[i], nil) {
					return
				}
			}
		}
	}
}

// keyRange returns what the keys of a query are between, or the only one.
func keyRange(q *dibs.Query) (low, high, one []byte) {
	switch {
	case q.Namespace == nil:
		return nil, []byte{255}, nil
	case q.Name != "":
		return nil, nil, appendKey(nil, dibs.Key{Namespace: *q.Namespace, Name: q.Name})
	}
	low = appendKey(nil, dibs.Key{Namespace: *q.Namespace})
	// No key is longer, so this is above all that begin with it.
	return low, append(slices.Clone(low), slices.Repeat([]byte{255}, dibs.MaxKey+1)...), nil
}

// nextKeys returns some of the keys between two, in order.
func (tx *transaction) nextKeys(st *lite.Stmt, low, high []byte, most int) (keys [][]byte, err error) {
	st.BindBlob(1, low)
	st.BindBlob(2, high)
	st.BindInt(3, int64(most))
	defer st.Reset()
	for {
		row, err := st.Step()
		if err != nil || !row {
			return keys, err
		}
		keys = append(keys, st.Copy(0))
	}
}

// describeAll describes the keys of which there is something to tell that the query asks
// for.
func (tx *transaction) describeAll(keys [][]byte, q *dibs.Query) (entries []dibs.Entry, err error) {
	for _, k := range keys {
		key, err := parseKey(k)
		if err != nil {
			return nil, err
		}
		if q.Name != "" && key.Name != q.Name {
			continue
		}
		tx.use(key, dibs.Token{})
		e, err := tx.describe(key, q)
		if err != nil {
			return nil, err
		}
		if e.Condition != "" && (q.ID == "" || named(e, q.ID)) {
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// describe describes a key. The Condition is "" when there is nothing to tell.
func (tx *transaction) describe(key dibs.Key, q *dibs.Query) (dibs.Entry, error) {
	e := dibs.Entry{Key: key}
	ks, err := tx.follow()
	if err != nil {
		return e, err
	}
	for i := range ks.leases {
		e.Permits = int(ks.leases[i].permits)
		e.Attempts = append(e.Attempts, tx.describeLease(&ks.leases[i]))
	}
	if ks.count > 0 {
		e.Attempts = append(e.Attempts, tx.describeLease(&ks.gone))
	}
	if err := tx.describePlaces(&e, q); err != nil {
		return e, err
	}
	if err := tx.describeRecord(&e, q); err != nil {
		return e, err
	}
	switch {
	case len(ks.leases) > 0:
		e.Condition = dibs.ConditionHeld
	case ks.unknown():
		e.Condition = dibs.ConditionUnknown
	case e.Waiters > 0:
		e.Condition = dibs.ConditionWaiting
	case e.Record != nil:
		e.Condition = dibs.ConditionDone
	case ks.count > 0:
		e.Condition = dibs.ConditionAbandoned
	}
	return e, nil
}

func (tx *transaction) describeLease(l *lease) dibs.Attempt {
	return dibs.Attempt{
		ID: l.token.ID(), Owner: dibs.ParseOwner(l.owner), Fence: uint64(l.fence), Attempt: int(l.attempt),
		Since: duration(tx.now - l.since), Left: duration(l.until - tx.now),
	}
}

func (tx *transaction) describePlaces(e *dibs.Entry, q *dibs.Query) error {
	st := tx.st.describePlaces
	st.BindBlob(1, tx.k)
	st.BindInt(2, tx.now)
	defer st.Reset()
	for {
		row, err := st.Step()
		if err != nil || !row {
			return err
		}
		if e.Waiters++; q.Places {
			e.Places = append(e.Places, dibs.PlaceInfo{
				Token: dibs.Token(st.Bytes(0)), Owner: dibs.ParseOwner(string(st.Bytes(1))),
				Left: duration(st.Int(2) - tx.now), Reserved: st.Bool(3),
			})
		}
	}
}

func (tx *transaction) describeRecord(e *dibs.Entry, q *dibs.Query) error {
	st := tx.st.recordInfo
	if q.Data {
		st = tx.st.record
	}
	st.BindBlob(1, tx.k)
	defer st.Reset()
	row, err := st.Step()
	if err != nil || !row || st.Int(0)>>recordShift <= tx.now {
		return err
	}
	e.Record = &dibs.RecordInfo{
		ID: dibs.Token(st.Bytes(1)).ID(), Bytes: int(st.Int(3)),
		Age: duration(max(0, tx.now-st.Int(2))), Left: duration(st.Int(0)>>recordShift - tx.now),
	}
	if q.Data {
		e.Record.Data = append([]byte{}, st.Bytes(4)...)
		e.Record.Bytes = len(e.Record.Data)
	}
	return nil
}

func named(e dibs.Entry, id string) bool {
	return e.Record != nil && e.Record.ID == id ||
		slices.ContainsFunc(e.Attempts, func(a dibs.Attempt) bool { return a.ID == id })
}

// Evict implements dibs.Inspector.
func (s *Store) Evict(ctx context.Context, key dibs.Key, id string) (n int, err error) {
	err = s.force(ctx, key, func(tx *transaction, ks *keyState) error {
		n = 0
		if ks.count > 0 && (id == "" || ks.gone.token.ID() == id) {
			n++
		}
		for _, l := range slices.Clone(ks.leases) {
			if id != "" && l.token.ID() != id {
				continue
			}
			if err := tx.end(ks, l); err != nil {
				return err
			}
			n++
		}
		if n == 0 {
			return nil
		}
		ks.freed = true
		return tx.forget(ks)
	})
	return n, err
}

// Forget implements dibs.Inspector.
func (s *Store) Forget(ctx context.Context, key dibs.Key) (found bool, err error) {
	err = s.force(ctx, key, func(tx *transaction, ks *keyState) error {
		st := tx.st.recordInfo
		st.BindBlob(1, tx.k)
		row, err := st.Step()
		alive := row && st.Int(0)>>recordShift > tx.now
		st.Reset()
		if err != nil {
			return err
		}
		if found = ks.count > 0 || alive; !found {
			return nil
		}
		tx.dirty, ks.freed = true, true
		tx.st.deleteRecord.BindBlob(1, tx.k)
		if _, err := tx.st.deleteRecord.Run(); err != nil {
			return err
		}
		return tx.forget(ks)
	})
	return found, err
}

// Resolve implements dibs.Inspector. Data larger than Options.MaxRecord is
// answered dibs.ErrFull.
func (s *Store) Resolve(ctx context.Context, key dibs.Key, id string, data []byte, retention time.Duration) (found bool, err error) {
	if retention < dibs.MinDuration {
		return false, fmt.Errorf("sqlitestore: the retention is %v; it must be at least %v", retention, dibs.MinDuration)
	}
	if len(data) > s.opt.MaxRecord {
		return false, tooLarge(len(data), s.opt.MaxRecord)
	}
	data = slices.Clone(data) // a call whose context ends may leave it behind
	err = s.force(ctx, key, func(tx *transaction, ks *keyState) error {
		if found = ks.unknown() && (id == "" || ks.gone.token.ID() == id); !found {
			return nil
		}
		gone := ks.gone
		ks.freed = true
		if err := tx.forget(ks); err != nil {
			return err
		}
		return tx.keep(gone.token, &gone.fingerprint, data, micros(retention))
	})
	return found, err
}

// force changes a key's state by hand, and then serves who is next.
func (s *Store) force(ctx context.Context, key dibs.Key, change func(*transaction, *keyState) error) error {
	if err := key.Validate(); err != nil {
		return err
	}
	return s.work(ctx, func(tx *transaction) error {
		tx.use(key, dibs.Token{})
		ks, err := tx.load()
		if err != nil {
			return err
		}
		if err := change(tx, ks); err != nil {
			return err
		}
		return tx.serve(ks)
	})
}
