package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// scanned is the COUNT of each SCAN.
const scanned = "512"

// kindsOf are the kinds of names that the keys of a part have.
var kindsOf = map[storekit.Part][]byte{storekit.All: {'s', 'r'}, storekit.Live: {'s'}, storekit.Kept: {'r'}}

// longHeld is MINUTE of lua/state.lua.
const longHeld = time.Minute

// isListed reports whether all keys that the query selects are under the listed names.
func isListed(q *store.Query) bool {
	return q.HeldFor >= longHeld && storekit.PartOf(q) == storekit.Live && !slices.Contains(q.Conditions, store.ConditionAbandoned)
}

// List implements store.Inspector with SCAN and other commands that only read. With a HeldFor of
// at least a minute, and without abandoned and done keys, it reads the listed names only. A key
// that exists during the whole listing is listed once. Other clients are not blocked. A key that
// changes meanwhile may be described by parts of two moments.
func (s *Store) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		if err := s.usable(ctx); err != nil {
			yield(store.Entry{}, err)
			return
		}
		if q.Namespace != nil && q.Name != "" {
			if k := (store.Key{Namespace: *q.Namespace, Name: q.Name}); storekit.Selects(&q, k) {
				s.list(ctx, &q, []store.Key{k}, yield)
			}
			return
		}
		scans := s.scan
		if isListed(&q) {
			scans = s.scanListed
		}
		// A name may come twice, and a key has a name for its state and one for its record.
		seen := make(map[store.Key]struct{})
		for names, err := range scans(ctx, &q) {
			if err != nil {
				yield(store.Entry{}, explain("SCAN", err))
				return
			}
			if !s.list(ctx, &q, s.unseen(&q, names, seen), yield) {
				return
			}
		}
	}
}

// scan yields the names of the keys that the query may select, and perhaps others.
func (s *Store) scan(ctx context.Context, q *store.Query) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		for _, node := range s.masters(ctx) {
			for _, kind := range kindsOf[storekit.PartOf(q)] {
				for cursor, more := uint64(0), true; more; more = cursor != 0 {
					part, err := node.Do(ctx, node.B().Arbitrary("SCAN", strconv.FormatUint(cursor, 10),
						"MATCH", s.names.pattern(kind, q.Namespace), "COUNT", scanned).Build()).AsScanEntry()
					if cursor = part.Cursor; !yield(part.Elements, err) || err != nil {
						return
					}
				}
			}
		}
	}
}

// scanListed yields the listed names. On a Cluster each bucket has its own.
func (s *Store) scanListed(ctx context.Context, q *store.Query) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		groups := []string{""}
		if s.names.cluster {
			groups = buckets()
		}
		for part := range slices.Chunk(groups, maxBatch) {
			for cursors := make([]uint64, len(part)); len(part) > 0; {
				commands := make(rueidis.Commands, len(part))
				for i, group := range part {
					commands[i] = s.client.B().Arbitrary("ZSCAN").Keys(s.names.listed(group)).
						Args(strconv.FormatUint(cursors[i], 10), "MATCH", s.names.pattern('s', q.Namespace), "COUNT", scanned).Build()
				}
				var open []string
				var at []uint64
				for i, result := range s.client.DoMulti(ctx, commands...) {
					found, err := result.AsScanEntry()
					if !yield(members(found.Elements), err) || err != nil {
						return
					}
					if found.Cursor != 0 {
						open, at = append(open, part[i]), append(at, found.Cursor)
					}
				}
				part, cursors = open, at
			}
		}
	}
}

// members returns the members of a sorted set without their scores.
func members(pairs []string) []string {
	all := make([]string, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, pairs[i])
	}
	return all
}

// unseen returns the keys of names that match the query and are new.
func (s *Store) unseen(q *store.Query, names []string, seen map[store.Key]struct{}) []store.Key {
	var keys []store.Key
	for _, name := range names {
		k, ok := s.names.parse(name)
		if _, was := seen[k]; ok && !was && storekit.Selects(q, k) {
			seen[k] = struct{}{}
			keys = append(keys, k)
		}
	}
	return keys
}

// masters returns a client for each server that owns keys.
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

// list inspects keys and yields those that match the query.
func (s *Store) list(ctx context.Context, q *store.Query, keys []store.Key, yield func(store.Entry, error) bool) bool {
	entries, err := s.inspect(ctx, q, keys...)
	if err != nil {
		yield(store.Entry{}, err)
		return false
	}
	for _, e := range entries {
		if storekit.Matches(&e.Entry, q) && !yield(e.Entry, nil) {
			return false
		}
	}
	return true
}

// ForceRelease implements store.Inspector.
func (s *Store) ForceRelease(ctx context.Context, key store.Key, id string) (int, error) {
	token, ok, err := s.tokenOf(ctx, key, id)
	if err != nil || !ok {
		return 0, err
	}
	return s.force(ctx, forceReleaseScript, key, token)
}

// Forget implements store.Inspector.
func (s *Store) Forget(ctx context.Context, key store.Key, id string) (bool, error) {
	token, ok, err := s.tokenOf(ctx, key, id)
	if err != nil || !ok {
		return false, err
	}
	n, err := s.force(ctx, forgetScript, key, token)
	return n > 0, err
}

// Resolve implements store.Inspector. It returns store.ErrTooLarge when the record is
// larger than Options.MaxRecord.
func (s *Store) Resolve(ctx context.Context, key store.Key, id string, data []byte, retention time.Duration) (bool, error) {
	if retention < store.MinDuration {
		return false, fmt.Errorf("redisstore: the retention is %v; it must be at least %v", retention, store.MinDuration)
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

// force runs a script on one key. It returns the script's number.
func (s *Store) force(ctx context.Context, sc *script, key store.Key, args ...string) (n int, err error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	var failed error
	all := s.batches(1, verb{
		script:     sc,
		head:       append([]string{s.names.sharded()}, args...),
		key:        func(int) (store.Key, bool) { return key, true },
		answer:     func(_ int, r *reply) { n = int(r.int()) },
		fail:       func(_ int, err error) { failed = err },
		replicated: func(int, byte) bool { return sc == resolveScript },
	})
	err = s.run(ctx, all)
	return n, cmp.Or(err, failed)
}

// tokenOf returns the token of the lease or the record with the ID, or "" for any. It returns
// false when there is neither.
func (s *Store) tokenOf(ctx context.Context, key store.Key, id string) (string, bool, error) {
	if err := s.usable(ctx); err != nil {
		return "", false, err
	}
	if err := key.Validate(); err != nil || id == "" {
		return "", err == nil, err
	}
	entries, err := s.inspect(ctx, &store.Query{}, key)
	t, ok := entries[0].tokens[id]
	return string(t[:]), ok, err
}
