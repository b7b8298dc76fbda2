package pgstore

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
)

var _ dibs.Inspector = (*Store)(nil)

// listed is how many keys are listed by one statement.
const listed = 256

// List implements dibs.Inspector. It goes through the keys in their order, some in
// each statement, so that it neither holds anything up nor keeps a transaction open.
func (s *Store) List(ctx context.Context, q dibs.Query) iter.Seq2[dibs.Entry, error] {
	return func(yield func(dibs.Entry, error) bool) {
		if err := s.usable(ctx); err != nil {
			yield(dibs.Entry{}, err)
			return
		}
		first, last := bounds(&q)
		for {
			page, err := s.page(ctx, first, last, &q)
			if err != nil {
				yield(dibs.Entry{}, err)
				return
			}
			for i := range page {
				e := &page[i].Entry
				if e.Condition != "" && matches(e, &q) && !yield(*e, nil) {
					return
				}
			}
			if len(page) < listed {
				return
			}
			first = append(bytes.Clone(page[len(page)-1].k), 0) // nothing is between
		}
	}
}

// bounds returns from which k, and up to which, what the query asks for is.
func bounds(q *dibs.Query) (first, last []byte) {
	switch {
	case q.Namespace == nil:
		return []byte{}, nil
	case q.Name == "":
		first = appendKey(nil, dibs.Key{Namespace: *q.Namespace})
		return first, append(first[:len(first):len(first)], bytes.Repeat([]byte{0xff}, dibs.MaxKey+1)...)
	}
	k := appendKey(nil, dibs.Key{Namespace: *q.Namespace, Name: q.Name})
	return k, k
}

// entry is an Entry with what only the store needs.
type entry struct {
	dibs.Entry
	k      []byte
	tokens []dibs.Token // of the attempts
}

// page lists some keys.
func (s *Store) page(ctx context.Context, first, last []byte, q *dibs.Query) ([]entry, error) {
	var name []byte
	if q.Name != "" {
		name = []byte(q.Name)
	}
	rows, err := s.front.Query(ctx, s.names.source("list"), pgx.QueryExecModeExec, first, last, name, q.Data, listed)
	if err != nil {
		return nil, explain(err)
	}
	defer rows.Close()
	var page []entry
	for rows.Next() {
		var r listedRow
		if err := r.scan(rows); err != nil {
			return nil, explain(err)
		}
		if n := len(page); n == 0 || string(page[n-1].k) != string(r.k) {
			page = append(page, r.entry())
		}
		page[len(page)-1].attempt(&r)
	}
	for i := range page {
		page[i].conclude()
	}
	if err := rows.Err(); err != nil || !q.Places {
		return page, explain(err)
	}
	rows.Close() // it has the connection
	return page, s.places(ctx, page)
}

// placesSQL lists the places of keys, those that stand again after a lease that ran
// out among them.
const placesSQL = `SELECT w.k, w.token, w.owner, @us(CASE WHEN w.kind < 3 THEN w.ends ELSE l.ends + w.lasts END - n.now), w.kind > 0
FROM (SELECT clock_timestamp() AS now) n, @waiter w LEFT JOIN LATERAL (
    SELECT t.ends FROM @key t WHERE t.k = w.k AND t.seq = w.seq
    UNION ALL
    SELECT h.ends FROM @holder h WHERE h.k = w.k AND h.seq = w.seq
) l ON w.kind >= 3
WHERE w.k = ANY($1::bytea[]) AND CASE WHEN w.kind < 3 THEN NOT w.parked AND w.ends > n.now
    ELSE l.ends <= n.now AND l.ends + w.lasts > n.now END
ORDER BY w.k, w.seq`

// places adds the places of keys as they are a moment later.
func (s *Store) places(ctx context.Context, page []entry) error {
	at := map[string]*entry{}
	var keys [][]byte
	for i := range page {
		if e := &page[i]; e.Waiters > 0 {
			at[string(e.k)] = e
			keys = append(keys, e.k)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	rows, err := s.front.Query(ctx, s.names.sql(placesSQL), pgx.QueryExecModeExec, keys)
	if err != nil {
		return explain(err)
	}
	defer rows.Close()
	for rows.Next() {
		var k, token, owner []byte
		var left int64
		var reserved bool
		if err := rows.Scan(&k, &token, &owner, &left, &reserved); err != nil {
			return explain(err)
		}
		e := at[string(k)]
		e.Places = append(e.Places, dibs.PlaceInfo{
			Token: tokenOf(token), Owner: dibs.ParseOwner(string(owner)), Left: micro(left), Reserved: reserved,
		})
	}
	return explain(rows.Err())
}

// listedRow is a row of sql/list.sql.
type listedRow struct {
	k       []byte
	permits int
	record  []byte // its token; nil without one that counts
	bytes   int
	age     *int64
	left    *int64
	data    []byte
	waiters int

	token         []byte // nil without an attempt
	fence         *int64
	number        *int
	since, ends   *int64
	offered, once *bool
	owner         []byte
	lost          *bool
}

func (r *listedRow) scan(rows pgx.Rows) error {
	return rows.Scan(&r.k, &r.permits, &r.record, &r.bytes, &r.age, &r.left, &r.data, &r.waiters,
		&r.token, &r.fence, &r.number, &r.since, &r.ends, &r.offered, &r.once, &r.owner, &r.lost)
}

// entry returns what the row says of the key.
func (r *listedRow) entry() entry {
	e := entry{k: r.k}
	e.Key, _ = parseKey(r.k)
	e.Permits, e.Waiters = r.permits, r.waiters
	if r.record != nil && r.left != nil && *r.left > 0 {
		e.Record = &dibs.RecordInfo{
			ID: tokenOf(r.record).ID(), Bytes: r.bytes, Age: micro(*r.age), Left: micro(*r.left), Data: r.data,
		}
	}
	return e
}

// attempt adds the attempt that the row tells of, if it counts. What ran out is
// abandoned, though nobody has noticed; of several that were the last one counts.
func (e *entry) attempt(r *listedRow) {
	if r.token == nil {
		return
	}
	t := tokenOf(r.token)
	a := dibs.Attempt{
		ID: t.ID(), Owner: dibs.ParseOwner(string(r.owner)), Fence: uint64(*r.fence), Attempt: *r.number,
		Since: micro(*r.since), Left: micro(*r.ends), Offered: *r.offered,
	}
	gone := *r.lost || a.Left <= 0
	if gone && (a.Offered || !*r.once && -a.Left >= dibs.AbandonedMemory) {
		return
	}
	if n := len(e.Attempts); gone && n > 0 && e.Condition != dibs.ConditionHeld && e.Attempts[n-1].Left <= 0 {
		if e.Attempts[n-1].Left > a.Left {
			return
		}
		e.Attempts, e.tokens = e.Attempts[:n-1], e.tokens[:n-1]
	}
	e.Attempts, e.tokens = append(e.Attempts, a), append(e.tokens, t)
	switch {
	case !gone:
		e.Condition = dibs.ConditionHeld
	case e.Condition == dibs.ConditionHeld:
	case *r.once:
		e.Condition = dibs.ConditionUnknown
	default:
		e.Condition = dibs.ConditionAbandoned
	}
}

// conclude finds out in what condition the key is.
func (e *entry) conclude() {
	switch {
	case e.Condition == dibs.ConditionHeld || e.Condition == dibs.ConditionUnknown:
	case e.Waiters > 0:
		e.Condition = dibs.ConditionWaiting
	case e.Record != nil:
		e.Condition = dibs.ConditionDone
	}
	if e.Condition != dibs.ConditionHeld && e.Waiters == 0 {
		e.Permits = 0
	}
}

func matches(e *dibs.Entry, q *dibs.Query) bool {
	if q.ID == "" || e.Record != nil && e.Record.ID == q.ID {
		return true
	}
	for _, a := range e.Attempts {
		if a.ID == q.ID {
			return true
		}
	}
	return false
}

func tokenOf(b []byte) (t dibs.Token) {
	copy(t[:], b)
	return t
}

func micro(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// Evict implements dibs.Inspector.
func (s *Store) Evict(ctx context.Context, key dibs.Key, id string) (n int, err error) {
	token, ok, err := s.named(ctx, key, id)
	if err != nil || !ok {
		return 0, err
	}
	err = s.force(ctx, &n, "SELECT @evict($1, $2)", appendKey(nil, key), token)
	return n, err
}

// Forget implements dibs.Inspector.
func (s *Store) Forget(ctx context.Context, key dibs.Key) (forgot bool, err error) {
	if err := s.usable(ctx); err != nil {
		return false, err
	}
	if err := key.Validate(); err != nil {
		return false, err
	}
	err = s.force(ctx, &forgot, "SELECT @forget($1)", appendKey(nil, key))
	return forgot, err
}

// Resolve implements dibs.Inspector. It returns an error that is dibs.ErrFull
// when the record is larger than Options.MaxRecord.
func (s *Store) Resolve(ctx context.Context, key dibs.Key, id string, data []byte, retention time.Duration) (resolved bool, err error) {
	if retention < dibs.MinDuration {
		return false, fmt.Errorf("pgstore: the retention is %v; it must be at least %v", retention, dibs.MinDuration)
	}
	if err := s.fits(len(data)); err != nil {
		return false, err
	}
	token, ok, err := s.named(ctx, key, id)
	if err != nil || !ok {
		return false, err
	}
	if data == nil {
		data = []byte{}
	}
	err = s.force(ctx, &resolved, "SELECT @resolve($1, $2, $3, $4)", appendKey(nil, key), token, data, micros(retention))
	return resolved, err
}

// force calls a function that forces one key.
func (s *Store) force(ctx context.Context, answer any, sql string, args ...any) error {
	args = append([]any{pgx.QueryExecModeExec}, args...)
	return explain(s.front.QueryRow(ctx, s.names.sql(sql), args...).Scan(answer))
}

// named returns the token of the key's attempt that the ID names, nil for any. It
// reports false when there is none.
func (s *Store) named(ctx context.Context, key dibs.Key, id string) (token []byte, ok bool, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, false, err
	}
	if err := key.Validate(); err != nil || id == "" {
		return nil, err == nil, err
	}
	q := dibs.Query{Namespace: &key.Namespace, Name: key.Name}
	first, last := bounds(&q)
	page, err := s.page(ctx, first, last, &q)
	for i := range page {
		for j, a := range page[i].Attempts {
			if a.ID == id {
				return page[i].tokens[j][:], true, nil
			}
		}
	}
	return nil, false, err
}
