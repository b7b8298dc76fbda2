package sqlitestore

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// page is how many keys List reads in one transaction.
const page = 64

// parts are the statements that list the keys of a part.
var parts = map[backend.Part]string{backend.All: "allKeys", backend.Live: "keys", backend.Kept: "recordKeys"}

// List implements dibs.Inspector. It reads a few keys at a time, in transactions that it
// shares with calls.
func (s *Store) List(ctx context.Context, q dibs.Query) iter.Seq2[dibs.Entry, error] {
	return func(yield func(dibs.Entry, error) bool) {
		low, high, one := keyRange(&q)
		for more := true; more; {
			var entries []dibs.Entry
			var keys [][]byte
			err := s.work(ctx, func(tx *transaction) {
				if keys = [][]byte{one}; one == nil {
					keys = tx.nextKeys(parts[backend.PartOf(&q)], low, high, page)
				}
				entries = tx.describeAll(keys, &q)
			})
			if err != nil {
				yield(dibs.Entry{}, err)
				return
			}
			if more = len(keys) == page; more {
				low = keys[page-1]
			}
			for i := range entries {
				if !yield(entries[i], nil) {
					return
				}
			}
		}
	}
}

// keyRange returns the bounds of a query's keys, or the only key.
func keyRange(q *dibs.Query) (low, high, one []byte) {
	switch {
	case q.Namespace == nil:
		return nil, []byte{255}, nil
	case q.Name != "":
		return nil, nil, backend.AppendKey(nil, dibs.Key{Namespace: *q.Namespace, Name: q.Name})
	}
	low = backend.AppendKey(nil, dibs.Key{Namespace: *q.Namespace})
	// No key is longer, so this is above all keys of the namespace.
	return low, append(slices.Clone(low), slices.Repeat([]byte{255}, dibs.MaxKey+1)...), nil
}

// nextKeys returns the first keys between two, in order.
func (tx *transaction) nextKeys(name string, low, high []byte, most int) (keys [][]byte) {
	for row := range tx.rows(name, low, high, int64(most)) {
		keys = append(keys, row.Copy(0))
	}
	return keys
}

// describeAll describes the keys that match the query.
func (tx *transaction) describeAll(keys [][]byte, q *dibs.Query) (entries []dibs.Entry) {
	for _, k := range keys {
		key, ok := backend.ParseKey(string(k))
		if !ok {
			tx.err = fmt.Errorf("%w: it has an invalid key of %d bytes", ErrDamaged, len(k))
			return nil
		}
		if !backend.Selects(q, key) {
			continue
		}
		e := tx.describe(key, q)
		if backend.Matches(&e, q) {
			entries = append(entries, e)
		}
	}
	return entries
}

// describe describes a key. The Condition is "" if nothing is known of the key.
func (tx *transaction) describe(key dibs.Key, q *dibs.Query) dibs.Entry {
	e := dibs.Entry{Key: key}
	tx.use(key, dibs.Token{})
	ks := tx.advance()
	for i := range ks.leases {
		e.Permits = int(ks.leases[i].permits)
		e.Attempts = append(e.Attempts, tx.describeLease(&ks.leases[i]))
	}
	if ks.count > 0 {
		e.Attempts = append(e.Attempts, tx.describeLease(&ks.abandoned))
	}
	var count backend.Queue
	for row := range tx.rows("describePlaces", tx.k, tx.now) {
		number, reserved, left, hold := row.Int(4), row.Bool(3), row.Int(2)-tx.now, row.Int(5)
		use := count.Add(number, reserved, ks.taken(number))
		if !q.Places {
			continue
		}
		p := dibs.PlaceInfo{
			Token: dibs.Token(row.Bytes(0)), Owner: dibs.ParseOwner(string(row.Bytes(1))),
			Left: duration(left), Reserved: reserved, Use: use,
		}
		if reserved {
			p.Blocks = duration(min(left, ks.blocks(hold, row.Int(6), tx.now)))
		}
		e.Places = append(e.Places, p)
	}
	e.Waiters, e.Reserved = count.Waiters, count.Reserved
	tx.describeRecord(&e, q)
	backend.Describe(&e, len(ks.leases) > 0, ks.unknown(), ks.count > 0)
	return e
}

// blocks returns how much longer a reserved place may block because of its Hold.
func (ks *keyState) blocks(hold, asked, now int64) int64 {
	switch {
	case hold == 0:
		return math.MaxInt64
	case ks.free == 0: // it has not begun
		return hold
	}
	return max(ks.free, asked) + hold - now
}

func (tx *transaction) describeLease(l *lease) dibs.Attempt {
	return dibs.Attempt{
		ID: l.token.ID(), Owner: dibs.ParseOwner(l.owner), Fence: uint64(l.fence), Attempt: int(l.attempt),
		Since: duration(tx.now - l.since), Left: duration(l.until - tx.now),
	}
}

func (tx *transaction) describeRecord(e *dibs.Entry, q *dibs.Query) {
	name := "recordInfo"
	if q.Data {
		name = "record"
	}
	tx.get(name, func(row *lite.Stmt) {
		left := row.Int(0)>>recordShift - tx.now
		if left <= 0 {
			return
		}
		e.Record = &dibs.RecordInfo{
			ID: dibs.Token(row.Bytes(1)).ID(), Bytes: int(row.Int(3)),
			Age: duration(max(0, tx.now-row.Int(2))), Left: duration(left),
		}
		if q.Data {
			e.Record.Data = row.Copy(4)
			e.Record.Bytes = len(e.Record.Data)
		}
	}, tx.k)
}

// ForceRelease implements dibs.Inspector.
func (s *Store) ForceRelease(ctx context.Context, key dibs.Key, id string) (n int, err error) {
	err = s.force(ctx, key, func(tx *transaction, ks *keyState) {
		n = 0
		if ks.count > 0 && (id == "" || ks.abandoned.token.ID() == id) {
			n++
		}
		for _, l := range slices.Clone(ks.leases) {
			if id == "" || l.token.ID() == id {
				tx.end(ks, l)
				n++
			}
		}
		if n > 0 {
			tx.forget(ks)
		}
	})
	return n, err
}

// Forget implements dibs.Inspector.
func (s *Store) Forget(ctx context.Context, key dibs.Key) (found bool, err error) {
	err = s.force(ctx, key, func(tx *transaction, ks *keyState) {
		found = ks.count > 0
		tx.get("recordInfo", func(row *lite.Stmt) { found = found || row.Int(0)>>recordShift > tx.now }, tx.k)
		tx.change("deleteRecord", tx.k)
		tx.forget(ks)
	})
	return found, err
}

// Resolve implements dibs.Inspector. It returns dibs.ErrTooLarge when data is larger than
// Options.MaxRecord.
func (s *Store) Resolve(ctx context.Context, key dibs.Key, id string, data []byte, retention time.Duration) (found bool, err error) {
	if retention < dibs.MinDuration {
		return false, fmt.Errorf("sqlitestore: the retention is %v; it must be at least %v", retention, dibs.MinDuration)
	}
	if len(data) > s.opt.MaxRecord {
		return false, tooLarge(len(data), s.opt.MaxRecord)
	}
	data = slices.Clone(data) // the call may outlast the caller
	err = s.force(ctx, key, func(tx *transaction, ks *keyState) {
		if found = ks.unknown() && (id == "" || ks.abandoned.token.ID() == id); found {
			tx.keep(ks.abandoned.token, &ks.abandoned.fingerprint, data, micros(retention))
			tx.forget(ks)
		}
	})
	return found, err
}

// force changes a key's state and serves the next waiter.
func (s *Store) force(ctx context.Context, key dibs.Key, change func(*transaction, *keyState)) error {
	if err := key.Validate(); err != nil {
		return err
	}
	return s.work(ctx, func(tx *transaction) {
		tx.use(key, dibs.Token{})
		ks := tx.load()
		change(tx, ks)
		ks.freed = true
		tx.serve(ks)
	})
}
