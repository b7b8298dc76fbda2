package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// page is how many keys List reads in one look.
const page = 64

// List implements dibs.Inspector. It reads some keys at a time on a connection of
// its own, and is in nobody's way, unless keys were settled in transactions just now:
// what follows from that it writes down first.
func (s *Store) List(ctx context.Context, q dibs.Query) iter.Seq2[dibs.Entry, error] {
	return func(yield func(dibs.Entry, error) bool) {
		r, err := s.newReader(q)
		if err != nil {
			yield(dibs.Entry{}, fault(s.path, err))
			return
		}
		defer r.conn.Close()
		for more := true; more; {
			if err := ctx.Err(); err != nil {
				yield(dibs.Entry{}, err)
				return
			}
			var keys [][]byte
			keys, more, err = r.nextKeys()
			for err == nil && len(keys) > 0 {
				var entries []dibs.Entry
				var settled [][]byte
				entries, settled, err = r.read(keys)
				for i := range entries {
					if !yield(entries[i], nil) {
						return
					}
				}
				if keys = settled; err == nil && len(keys) > 0 {
					err = s.applyNotes(ctx, keys)
				}
			}
			if err != nil {
				yield(dibs.Entry{}, fault(s.path, err))
				return
			}
		}
	}
}

// waitersSQL counts the places that stand, also again: that of a lease that ran
// out stands from then on.
const waitersSQL = `SELECT count(*), max(permits) FROM @waiter AS w WHERE k = ?1 AND ?2 < ` + standsSQL

// standsSQL is until when a place stands.
const standsSQL = `CASE WHEN dormant < 3 THEN until ELSE (SELECT l.until + w.lasts FROM @lease AS l
	WHERE l.k = w.k AND l.seq = w.seq AND l.state = 0 AND l.until <= ?2) END`

// placesSQL lists these places.
const placesSQL = `SELECT token, owner, ` + standsSQL + `, dormant FROM @waiter AS w WHERE k = ?1 AND ?2 < ` + standsSQL + ` ORDER BY seq`

// reader reads entries.
type reader struct {
	s    *Store
	q    dibs.Query
	conn *lite.Conn

	begin, end, meta, keys         *lite.Stmt
	leases, waiters, record, datum *lite.Stmt
	places                         *lite.Stmt

	now   int64
	after []byte // the last key that was read
}

func (s *Store) newReader(q dibs.Query) (*reader, error) {
	select {
	case <-s.closing:
		return nil, ErrClosed
	default:
	}
	conn, err := lite.Open(s.full, lite.ReadWrite)
	if err != nil {
		return nil, err
	}
	r := &reader{s: s, q: q, conn: conn}
	for _, p := range []struct {
		st  **lite.Stmt
		sql string
	}{
		{&r.begin, "BEGIN"},
		{&r.end, "COMMIT"},
		{&r.meta, "SELECT offset, clock FROM @meta WHERE one = 1"},
		{&r.keys, `SELECT k FROM @lease WHERE k > ?1 AND k < ?2 UNION SELECT k FROM @waiter WHERE k > ?1 AND k < ?2
			UNION SELECT k FROM @record WHERE k > ?1 AND k < ?2 ORDER BY k LIMIT ?3`},
		{&r.leases, `SELECT token, state, until, fence, since, attempt, permits, once, owner FROM @lease WHERE k = ?1`},
		{&r.waiters, waitersSQL},
		{&r.places, placesSQL},
		{&r.record, "SELECT id, token, written, length(data) FROM @record WHERE k = ?1"},
		{&r.datum, "SELECT data FROM @record WHERE k = ?1"},
	} {
		if *p.st, err = conn.Prepare(s.tables.sql(p.sql)); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	return r, nil
}

// read reads the entries of the keys in one transaction. It leaves out the keys of
// which a lease was settled in a transaction of the application.
func (r *reader) read(keys [][]byte) (entries []dibs.Entry, settled [][]byte, err error) {
	if _, err := r.begin.Run(); err != nil {
		return nil, nil, err
	}
	defer func() {
		if _, end := r.end.Run(); err == nil {
			err = end
		}
	}()
	if _, err := r.meta.Step(); err != nil {
		r.meta.Reset()
		return nil, nil, err
	}
	r.now = max(r.s.clock.monotonic()+r.meta.Int(0), r.meta.Int(1))
	r.meta.Reset()
	for _, k := range keys {
		e, err := r.entry(k)
		if errors.Is(err, errNoted) {
			settled = append(settled, k)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if e.Condition != "" && (r.q.ID == "" || named(e, r.q.ID)) {
			entries = append(entries, e)
		}
	}
	return entries, settled, nil
}

// errNoted says that a lease was settled in a transaction of the application.
var errNoted = errors.New("a lease was settled in a transaction")

// nextKeys returns the next keys to look at, and reports whether there may be more.
func (r *reader) nextKeys() ([][]byte, bool, error) {
	low, high := r.after, []byte{255}
	switch {
	case r.q.Namespace != nil && r.q.Name != "":
		return [][]byte{appendKey(nil, dibs.Key{Namespace: *r.q.Namespace, Name: r.q.Name})}, false, nil
	case r.q.Namespace != nil:
		prefix := appendKey(nil, dibs.Key{Namespace: *r.q.Namespace})
		// No key is longer, so this is above all that begin with the prefix.
		high = append(slices.Clone(prefix), slices.Repeat([]byte{255}, dibs.MaxKey+1)...)
		if low == nil {
			low = prefix
		}
	}
	r.keys.BindBlob(1, low)
	r.keys.BindBlob(2, high)
	r.keys.BindInt(3, page)
	defer r.keys.Reset()
	var keys [][]byte
	n := 0
	for {
		row, err := r.keys.Step()
		if err != nil || !row {
			return keys, n == page, err
		}
		n++
		k := r.keys.Copy(0)
		r.after = k
		if key, err := parseKey(k); err != nil {
			return nil, false, err
		} else if r.q.Name == "" || key.Name == r.q.Name {
			keys = append(keys, k)
		}
	}
}

// entry describes a key. Its Condition is "" when there is nothing to tell.
func (r *reader) entry(k []byte) (dibs.Entry, error) {
	key, err := parseKey(k)
	if err != nil {
		return dibs.Entry{}, err
	}
	e := dibs.Entry{Key: key}
	gone, live, err := r.readLeases(k, &e)
	if err != nil {
		return e, err
	}
	r.waiters.BindBlob(1, k)
	r.waiters.BindInt(2, r.now)
	if _, err := r.waiters.Step(); err != nil {
		r.waiters.Reset()
		return e, err
	}
	e.Waiters = int(r.waiters.Int(0))
	if e.Permits == 0 {
		e.Permits = int(r.waiters.Int(1))
	}
	r.waiters.Reset()
	if r.q.Places && e.Waiters > 0 {
		if err := r.readPlaces(k, &e); err != nil {
			return e, err
		}
	}
	if err := r.readRecord(k, &e); err != nil {
		return e, err
	}
	switch {
	case live:
		e.Condition = dibs.ConditionHeld
	case gone == unknown:
		e.Condition = dibs.ConditionUnknown
	case e.Waiters > 0:
		e.Condition = dibs.ConditionWaiting
	case e.Record != nil:
		e.Condition = dibs.ConditionDone
	case gone == abandoned:
		e.Condition = dibs.ConditionAbandoned
	}
	return e, nil
}

// readLeases adds the attempts, and returns the state of the abandoned one, 0
// when there is none, and whether there is a live one.
func (r *reader) readLeases(k []byte, e *dibs.Entry) (gone int64, live bool, err error) {
	type row struct {
		dibs.Attempt
		state, fence int64
	}
	var ended []row
	newest := int64(0) // fence of the newest lease that somebody holds
	r.leases.BindBlob(1, k)
	defer r.leases.Reset()
	for {
		ok, err := r.leases.Step()
		if err != nil {
			return 0, false, err
		}
		if !ok {
			break
		}
		st := r.leases
		l := row{state: st.Int(1), fence: st.Int(3)}
		l.Attempt = dibs.Attempt{
			ID: dibs.Token(st.Bytes(0)).ID(), Owner: dibs.ParseOwner(string(st.Bytes(8))), Fence: uint64(l.fence),
			Attempt: int(st.Int(5)), Since: duration(r.now - st.Int(4)), Left: duration(st.Int(2) - r.now),
			Offered: l.state == offered,
		}
		switch {
		case l.state == noted:
			return 0, false, errNoted
		case l.state >= abandoned:
			ended = append(ended, l)
		case l.Left > 0:
			live = true
			e.Permits = int(st.Int(6))
			e.Attempts = append(e.Attempts, l.Attempt)
			if l.state == held {
				newest = max(newest, l.fence)
			}
		case l.state == held:
			l.state = abandoned
			if st.Bool(7) {
				l.state = unknown
			}
			ended = append(ended, l)
		}
	}
	slices.SortFunc(ended, func(a, b row) int { return int(b.Left - a.Left) })
	if len(ended) == 0 || ended[0].fence < newest {
		return 0, live, nil
	}
	last := ended[0]
	if last.state == abandoned && last.Left <= -dibs.AbandonedMemory {
		return 0, live, nil
	}
	e.Attempts = append(e.Attempts, last.Attempt)
	return last.state, live, nil
}

func (r *reader) readPlaces(k []byte, e *dibs.Entry) error {
	st := r.places
	st.BindBlob(1, k)
	st.BindInt(2, r.now)
	defer st.Reset()
	for {
		row, err := st.Step()
		if err != nil || !row {
			return err
		}
		e.Places = append(e.Places, dibs.PlaceInfo{
			Token: dibs.Token(st.Bytes(0)), Owner: dibs.ParseOwner(string(st.Bytes(1))),
			Left: duration(st.Int(2) - r.now), Reserved: st.Int(3) != 0,
		})
	}
}

func (r *reader) readRecord(k []byte, e *dibs.Entry) error {
	r.record.BindBlob(1, k)
	defer r.record.Reset()
	row, err := r.record.Step()
	if err != nil || !row {
		return err
	}
	until := r.record.Int(0) >> recordShift
	if until <= r.now {
		return nil
	}
	e.Record = &dibs.RecordInfo{
		ID: dibs.Token(r.record.Bytes(1)).ID(), Bytes: int(r.record.Int(3)),
		Age: duration(r.now - r.record.Int(2)), Left: duration(until - r.now),
	}
	if !r.q.Data {
		return nil
	}
	r.datum.BindBlob(1, k)
	defer r.datum.Reset()
	if _, err := r.datum.Step(); err != nil {
		return err
	}
	e.Record.Data = r.datum.Copy(0)
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
		gone := ks.last()
		if gone != nil && (id == "" || gone.token.ID() == id) {
			n++
		}
		for _, l := range slices.Clone(ks.live) {
			if id != "" && l.token.ID() != id {
				continue
			}
			if err := tx.endLease(ks, l); err != nil {
				return err
			}
			n++
		}
		if n == 0 {
			return nil
		}
		return tx.forget(ks)
	})
	return n, err
}

// Forget implements dibs.Inspector.
func (s *Store) Forget(ctx context.Context, key dibs.Key) (found bool, err error) {
	err = s.force(ctx, key, func(tx *transaction, ks *keyState) error {
		record := tx.st.record
		record.BindBlob(1, tx.k)
		row, err := record.Step()
		alive := row && record.Int(0)>>recordShift > tx.now
		record.Reset()
		if err != nil {
			return err
		}
		if found = ks.last() != nil || alive; found {
			if err := tx.forget(ks); err != nil {
				return err
			}
		}
		if !row {
			return nil
		}
		tx.dirty = true
		tx.st.deleteRecord.BindBlob(1, tx.k)
		_, err = tx.st.deleteRecord.Run()
		return err
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
		if err := tx.forget(ks); err != nil {
			return err
		}
		return tx.keep(gone.token, &gone.fingerprint, data, tx.now, micros(retention))
	})
	return found, err
}

// force changes a key's state by hand, and then offers the key to who is next.
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
		if err := tx.tidy(ks); err != nil {
			return err
		}
		if err := change(tx, ks); err != nil {
			return err
		}
		return tx.advance(ks)
	})
}
