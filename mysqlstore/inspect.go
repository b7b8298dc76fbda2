package mysqlstore

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
)

var _ dibs.Inspector = (*Store)(nil)

// listed is how many keys are listed by one statement.
const listed = 256

// List implements dibs.Inspector. It goes through the keys in their order, some at a
// time, so that it neither holds anything up nor keeps a transaction open.
func (s *Store) List(ctx context.Context, q dibs.Query) iter.Seq2[dibs.Entry, error] {
	return func(yield func(dibs.Entry, error) bool) {
		if err := s.usable(ctx); err != nil {
			yield(dibs.Entry{}, err)
			return
		}
		first, last := bounds(&q)
		for {
			page, next, err := s.page(ctx, first, last, &q)
			if err != nil {
				yield(dibs.Entry{}, explain(err))
				return
			}
			for _, e := range page {
				if e.Condition != "" && matches(&e, &q) && !yield(e, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			first = next
		}
	}
}

// bounds returns from which k, and up to which, what the query asks for is.
func bounds(q *dibs.Query) (first, last string) {
	switch {
	case q.Namespace == nil:
		return "", "\xff" // no namespace is that long
	case q.Name == "":
		first = keyOf(dibs.Key{Namespace: *q.Namespace})
		return first, first + strings.Repeat("\xff", dibs.MaxKey+1)
	}
	k := keyOf(dibs.Key{Namespace: *q.Namespace, Name: q.Name})
	return k, k
}

// page lists some keys, each as it was at one moment. It returns where to go on, ""
// at the end.
func (s *Store) page(ctx context.Context, first, last string, q *dibs.Query) (page []dibs.Entry, next string, err error) {
	b := s.newBatch(nil, looking)
	var keys []string
	n := 0
	find := &script{}
	find.raw(s.names.sql("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k>=")).bytes(first).raw(" AND k<=").bytes(last)
	find.raw(" ORDER BY k LIMIT ").int(listed).asks(func(r *reading) error {
		k := r.string()
		next = k + "\x00" // nothing is between
		if key, ok := parseKey(k); ok && (q.Name == "" || key.Name == q.Name) {
			keys = append(keys, k)
		}
		n++
		return r.err
	})
	v := &view{batch: b, waiters: map[string]int{}, seats: map[string][]place{}, places: map[string][]place{}, asked: q.Places, data: map[string][]byte{}, bytes: map[string]int{}}
	err = use(ctx, s.front, func(c session) error {
		if err := c.run(ctx, find); err != nil || len(keys) == 0 {
			return err
		}
		return c.run(ctx, v.script(keys, q))
	})
	for _, k := range keys {
		if st := b.states[k]; st != nil {
			page = append(page, v.entry(st))
		}
	}
	if n < listed {
		next = ""
	}
	return page, next, err
}

// view is some keys as they are at one moment.
type view struct {
	*batch
	now     int64
	waiters map[string]int     // places that stand
	seats   map[string][]place // places that are taken
	places  map[string][]place // places that stand, if they are asked for
	asked   bool
	bytes   map[string]int // how large the records are
	data    map[string][]byte
}

func (v *view) script(keys []string, q *dibs.Query) *script {
	s := &script{}
	s.raw("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;START TRANSACTION READ ONLY").done()
	of := func(sql string) *script { return s.raw(v.names.sql(sql)).keys(keys).raw(")") }
	of("SELECT " + keyColumns + " FROM @key FORCE INDEX (PRIMARY) WHERE k IN (").asks(func(r *reading) error { v.addRow(r); return r.err })
	of("SELECT " + holderColumns + " FROM @holder WHERE k IN (").asks(v.addHolder)
	of("SELECT k,COUNT(*) FROM @waiter WHERE kind<3 AND ends>" + clock + " AND k IN (").raw(" GROUP BY k").asks(func(r *reading) error {
		k := r.string()
		v.waiters[k] = int(r.int())
		return r.err
	})
	of("SELECT k,seq,lasts,token,owner FROM @waiter WHERE kind>=3 AND k IN (").asks(func(r *reading) error {
		k := r.string()
		v.seats[k] = append(v.seats[k], place{seq: r.int(), lasts: r.int(), token: r.token(), owner: r.string(), kind: 3})
		return r.err
	})
	if q.Places {
		of("SELECT k,seq,ends,token,owner,kind FROM @waiter WHERE kind<3 AND ends>" + clock + " AND k IN (").asks(func(r *reading) error {
			k := r.string()
			v.places[k] = append(v.places[k], place{seq: r.int(), ends: r.int(), token: r.token(), owner: r.string(), kind: r.int()})
			return r.err
		})
	}
	what := "NULL"
	if q.Data {
		what = "data"
	}
	of("SELECT k,LENGTH(data)," + what + " FROM @record WHERE k IN (").asks(func(r *reading) error {
		k := r.string()
		v.bytes[k] = int(r.int())
		if !r.null() {
			v.data[k] = slices.Clone(r.bytes())
		}
		return r.err
	})
	s.raw("SELECT " + clock).asks(func(r *reading) error { v.now = r.int(); return r.err })
	return s.raw("COMMIT").done()
}

// entry tells of a key. Its Condition is "" when there is nothing to tell.
func (v *view) entry(st *state) dibs.Entry {
	e := dibs.Entry{Waiters: v.waiters[st.k]}
	e.Key, _ = parseKey(st.k)
	lost := st.lost
	var again []place
	for _, l := range st.holders {
		if l.ends > v.now {
			e.Condition = dibs.ConditionHeld
			e.Attempts = append(e.Attempts, v.attempt(&l))
			continue
		}
		// It ran out, and is abandoned though nobody has noticed. Its place stands again.
		for _, p := range v.seats[st.k] {
			if p.seq == l.seq && l.ends+p.lasts > v.now {
				e.Waiters++
				p.ends = l.ends + p.lasts
				again = append(again, p)
			}
		}
		if !l.offered && (lost == nil || lost.ends <= l.ends) {
			lost = &l
		}
	}
	if v.asked {
		e.Places = v.info(append(v.places[st.k], again...))
	}
	if lost != nil && (lost.once || v.now-lost.ends < memory) {
		e.Attempts = append(e.Attempts, v.attempt(lost))
		switch {
		case e.Condition != "":
		case lost.once:
			e.Condition = dibs.ConditionUnknown
		default:
			e.Condition = dibs.ConditionAbandoned
		}
	}
	if r := &st.record; r.ends > v.now {
		e.Record = &dibs.RecordInfo{
			ID: r.token.ID(), Bytes: v.bytes[st.k], Age: duration(max(v.now-r.written, 0)), Left: duration(r.ends - v.now), Data: v.data[st.k],
		}
	}
	if e.Condition == "" || e.Condition == dibs.ConditionAbandoned {
		switch {
		case e.Waiters > 0:
			e.Condition = dibs.ConditionWaiting
		case e.Record != nil:
			e.Condition = dibs.ConditionDone
		}
	}
	if e.Condition == dibs.ConditionHeld || e.Waiters > 0 {
		e.Permits = int(st.permits)
	}
	return e
}

// info tells of places.
func (v *view) info(all []place) []dibs.PlaceInfo {
	slices.SortFunc(all, func(a, b place) int { return cmp.Compare(a.seq, b.seq) })
	var infos []dibs.PlaceInfo
	for _, p := range all {
		infos = append(infos, dibs.PlaceInfo{
			Token: p.token, Owner: dibs.ParseOwner(p.owner), Left: duration(p.ends - v.now), Reserved: p.kind > 0,
		})
	}
	return infos
}

func (v *view) attempt(l *lease) dibs.Attempt {
	return dibs.Attempt{
		ID: l.token.ID(), Owner: dibs.ParseOwner(l.owner), Fence: uint64(l.fence), Attempt: int(l.attempt),
		Since: duration(v.now - l.since), Left: duration(l.ends - v.now), Offered: l.offered,
	}
}

func matches(e *dibs.Entry, q *dibs.Query) bool {
	return q.ID == "" || e.Record != nil && e.Record.ID == q.ID ||
		slices.ContainsFunc(e.Attempts, func(a dibs.Attempt) bool { return a.ID == q.ID })
}

// Evict implements dibs.Inspector.
func (s *Store) Evict(ctx context.Context, key dibs.Key, id string) (n int, err error) {
	err = s.force(ctx, key, func(st *state) error {
		n, err = st.evict(id)
		return err
	})
	return n, err
}

// Forget implements dibs.Inspector.
func (s *Store) Forget(ctx context.Context, key dibs.Key) (found bool, err error) {
	err = s.force(ctx, key, func(st *state) error {
		found, err = st.forget()
		return err
	})
	return found, err
}

// Resolve implements dibs.Inspector. Data larger than Options.MaxRecord, or than the
// server takes, is answered dibs.ErrFull.
func (s *Store) Resolve(ctx context.Context, key dibs.Key, id string, data []byte, retention time.Duration) (found bool, err error) {
	if retention < dibs.MinDuration {
		return false, fmt.Errorf("mysqlstore: the retention is %v; it must be at least %v", retention, dibs.MinDuration)
	}
	if err := s.fits(data); err != nil {
		return false, err
	}
	err = s.force(ctx, key, func(st *state) error {
		found, err = st.resolve(id, data, retention)
		return err
	})
	return found, err
}

// force changes the state of one key.
func (s *Store) force(ctx context.Context, key dibs.Key, do func(*state) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if err := key.Validate(); err != nil {
		return err
	}
	return try(ctx, func() error {
		k := keyOf(key)
		b := s.newBatch(nil, locking)
		b.want(k, dibs.Token{})
		return s.work(ctx, s.front, b, map[string]bool{k: true}, func() error { return do(b.states[k]) })
	})
}
