package redisstore

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
)

// scanned is how many names SCAN looks at in one go.
const scanned = "512"

// List implements dibs.Inspector, with SCAN: a key that is there from the
// beginning to the end is listed once, and others work on meanwhile.
func (s *Store) List(ctx context.Context, q dibs.Query) iter.Seq2[dibs.Entry, error] {
	return func(yield func(dibs.Entry, error) bool) {
		if err := s.usable(ctx); err != nil {
			yield(dibs.Entry{}, err)
			return
		}
		if q.Namespace != nil && q.Name != "" {
			s.list(ctx, &q, []dibs.Key{{Namespace: *q.Namespace, Name: q.Name}}, yield)
			return
		}
		// SCAN may tell a name twice, and a key has one for its state and one
		// for its record.
		seen := make(map[dibs.Key]struct{})
		for keys, err := range s.scan(ctx, &q) {
			if err != nil {
				yield(dibs.Entry{}, err)
				return
			}
			n := 0
			for _, k := range keys {
				if _, ok := seen[k]; !ok {
					seen[k] = struct{}{}
					keys[n] = k
					n++
				}
			}
			if !s.list(ctx, &q, keys[:n], yield) {
				return
			}
		}
	}
}

// scan yields the keys that have a state or a record, some of them several
// times.
func (s *Store) scan(ctx context.Context, q *dibs.Query) iter.Seq2[[]dibs.Key, error] {
	return func(yield func([]dibs.Key, error) bool) {
		for _, node := range s.masters(ctx) {
			for _, kind := range []byte{'s', 'r'} {
				pattern := s.names.pattern(kind, q.Namespace)
				for cursor := uint64(0); ; {
					scan, err := node.Do(ctx, node.B().Arbitrary("SCAN", strconv.FormatUint(cursor, 10),
						"MATCH", pattern, "COUNT", scanned).Build()).AsScanEntry()
					if err != nil {
						yield(nil, explain(err))
						return
					}
					var keys []dibs.Key
					for _, name := range scan.Elements {
						k, ok := s.names.parse(name)
						if ok && (q.Namespace == nil || k.Namespace == *q.Namespace) && (q.Name == "" || k.Name == q.Name) {
							keys = append(keys, k)
						}
					}
					if len(keys) > 0 && !yield(keys, nil) {
						return
					}
					if cursor = scan.Cursor; cursor == 0 {
						break
					}
				}
			}
		}
	}
}

// masters returns a client for each server that has keys of its own.
func (s *Store) masters(ctx context.Context) []rueidis.Client {
	if !s.names.cluster {
		return []rueidis.Client{s.client}
	}
	var all []rueidis.Client
	for _, node := range s.client.Nodes() {
		role, err := node.Do(ctx, node.B().Role().Build()).ToArray()
		if err == nil && len(role) > 0 {
			if name, _ := role[0].ToString(); name != "master" {
				continue
			}
		}
		all = append(all, node)
	}
	return all
}

// list inspects keys and yields what the query asks for.
func (s *Store) list(ctx context.Context, q *dibs.Query, keys []dibs.Key, yield func(dibs.Entry, error) bool) bool {
	entries := make([]dibs.Entry, len(keys))
	err := s.inspect(ctx, keys, q, func(i int, m *rueidis.RedisMessage) (err error) {
		entries[i], err = readEntry(m)
		entries[i].Key = keys[i]
		return err
	})
	if err != nil {
		yield(dibs.Entry{}, err)
		return false
	}
	for i := range entries {
		e := &entries[i]
		if e.Condition != "" && matches(e, q) && !yield(*e, nil) {
			return false
		}
	}
	return true
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

// readEntry reads what lua/inspect.lua tells of a key. Without anything to tell
// the Condition is "".
func readEntry(m *rueidis.RedisMessage) (dibs.Entry, error) {
	var e dibs.Entry
	f, err := fields(m)
	if err != nil {
		return e, err
	}
	if len(f.rest) == 2 {
		f.next()
		one, all := element(f.text())
		return e, first(all, one)
	}
	e.Permits, e.Waiters = int(f.int()), int(f.int())
	attempts, err := f.next().ToArray()
	if err != nil {
		return e, err
	}
	var live, lost, unknown bool
	for i := range attempts {
		a, kind, err := readAttempt(&attempts[i])
		if err != nil {
			return e, err
		}
		e.Attempts = append(e.Attempts, a)
		live = live || kind == 0
		lost = lost || kind == 1
		unknown = unknown || kind == 2
	}
	r, err := fields(f.next())
	if err != nil {
		return e, err
	}
	if r.more() {
		e.Record = &dibs.RecordInfo{
			ID: r.token().ID(), Bytes: int(r.int()), Age: duration(r.int()), Left: duration(r.int()),
		}
		if r.more() {
			e.Record.Data = r.bytes()
		}
	}
	places, err := f.next().ToArray()
	if err != nil {
		return e, err
	}
	for i := range places {
		p, err := fields(&places[i])
		if err != nil {
			return e, err
		}
		e.Places = append(e.Places, dibs.PlaceInfo{
			Token: p.token(), Left: duration(p.int()), Reserved: p.int() == 1, Owner: dibs.ParseOwner(p.text()),
		})
		if p.err != nil {
			return e, p.err
		}
	}
	switch {
	case live:
		e.Condition = dibs.ConditionHeld
	case unknown:
		e.Condition = dibs.ConditionUnknown
	case e.Waiters > 0:
		e.Condition = dibs.ConditionWaiting
	case e.Record != nil:
		e.Condition = dibs.ConditionDone
	case lost:
		e.Condition = dibs.ConditionAbandoned
	}
	return e, first(f.err, r.err)
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func readAttempt(m *rueidis.RedisMessage) (a dibs.Attempt, kind int64, err error) {
	f, err := fields(m)
	if err != nil {
		return a, 0, err
	}
	a.ID = f.token().ID()
	a.Fence, a.Attempt = uint64(f.int()), int(f.int())
	a.Since, a.Left = duration(f.int()), duration(f.int())
	a.Owner = dibs.ParseOwner(f.text())
	kind = f.int()
	return a, kind, f.err
}

// Evict implements dibs.Inspector.
func (s *Store) Evict(ctx context.Context, key dibs.Key, id string) (int, error) {
	token, ok, err := s.tokenOf(ctx, key, id)
	if err != nil || !ok {
		return 0, err
	}
	return s.force(ctx, evictScript, key, token)
}

// Forget implements dibs.Inspector.
func (s *Store) Forget(ctx context.Context, key dibs.Key) (bool, error) {
	if err := key.Validate(); err != nil {
		return false, err
	}
	n, err := s.force(ctx, forgetScript, key)
	return n > 0, err
}

// Resolve implements dibs.Inspector. It returns an error that is dibs.ErrFull
// when the record is larger than Options.MaxRecord.
func (s *Store) Resolve(ctx context.Context, key dibs.Key, id string, data []byte, retention time.Duration) (bool, error) {
	if retention < dibs.MinDuration {
		return false, fmt.Errorf("redisstore: the retention is %v; it must be at least %v", retention, dibs.MinDuration)
	}
	if err := s.fits(len(data)); err != nil {
		return false, err
	}
	token, ok, err := s.tokenOf(ctx, key, id)
	if err != nil || !ok {
		return false, err
	}
	n, err := s.force(ctx, resolveScript, key, token, string(data), strconv.FormatUint(micros(retention), 10))
	return n > 0, err
}

// force runs a script that forces one key.
func (s *Store) force(ctx context.Context, sc *script, key dibs.Key, args ...string) (int, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	var n int64
	all := s.batches(1, verb{
		script: sc,
		head:   append([]string{s.names.sharded()}, args...),
		key:    every(key),
		answer: func(_ int, m *rueidis.RedisMessage) (err error) {
			if m.IsArray() {
				f, err := fields(m)
				if err != nil {
					return err
				}
				f.next()
				one, all := element(f.text())
				return first(all, one)
			}
			n, err = m.AsInt64()
			return err
		},
		lasts: func(_ int, m *rueidis.RedisMessage) bool { return sc == resolveScript && isDone(m) },
	})
	err := s.run(ctx, all)
	return int(n), first(err, all[0].behind)
}

// inspect runs the script of that name for keys.
func (s *Store) inspect(ctx context.Context, keys []dibs.Key, q *dibs.Query, answer func(int, *rueidis.RedisMessage) error) error {
	wanted := map[bool]string{false: "0", true: "1"}
	all := s.batches(len(keys), verb{script: inspectScript, head: []string{wanted[q.Data], wanted[q.Places]}, key: every(keys...), answer: answer})
	for _, b := range all {
		b.call.keys = b.call.keys[1:] // it needs no fence
	}
	return s.run(ctx, all)
}

// every is the key of a verb whose elements are keys.
func every(keys ...dibs.Key) func(int) (dibs.Key, bool) {
	return func(i int) (dibs.Key, bool) { return keys[i], true }
}

// tokenOf returns the token of the attempt that the ID names, as the scripts
// want it: "" for any. It reports false when there is none.
func (s *Store) tokenOf(ctx context.Context, key dibs.Key, id string) (string, bool, error) {
	if err := s.usable(ctx); err != nil {
		return "", false, err
	}
	if err := key.Validate(); err != nil || id == "" {
		return "", err == nil, err
	}
	var token string
	err := s.inspect(ctx, []dibs.Key{key}, &dibs.Query{}, func(_ int, m *rueidis.RedisMessage) error {
		if _, err := readEntry(m); err != nil {
			return err
		}
		entry, _ := m.ToArray()
		attempts, _ := entry[2].ToArray()
		for _, a := range attempts {
			f, err := fields(&a)
			if err != nil {
				return err
			}
			if t := f.token(); t.ID() == id {
				token = string(t[:])
			}
		}
		return nil
	})
	return token, token != "", err
}
