package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// readMost is how many places of a queue are read at once, and at most described.
const readMost = 500

// entry describes a key. Its Condition is "" if nothing is known of the key.
type entry struct {
	store.Entry
	tokens map[string]store.Token // of the leases and of the record, by ID
}

// inspect describes keys with commands that need no right but to read: no script.
func (s *Store) inspect(ctx context.Context, q *store.Query, keys ...store.Key) ([]entry, error) {
	entries := make([]entry, len(keys))
	for i, k := range keys {
		entries[i].Key = k
	}
	for at := 0; at < len(keys); at += maxBatch {
		part := entries[at:min(at+maxBatch, len(keys))]
		if err := s.describe(ctx, q, part); err != nil {
			return entries, err
		}
	}
	return entries, nil
}

// values are the values of a key.
type values struct {
	now    int64  // the server's time, in µs; 0: the key has no values
	state  []byte // nil: there is none
	record []byte // nil: there is none; without its data unless it was asked for
	size   int    // of the record

	members []scored // the first ones of the queue
	places  []place  // those of them that are still there
}

// scored is a member of a queue.
type scored struct {
	token    []byte
	reserves bool
	number   int64
}

func (s *Store) describe(ctx context.Context, q *store.Query, entries []entry) error {
	all, err := s.values(ctx, q, entries)
	if err == nil {
		err = s.queues(ctx, entries, all)
	}
	if err != nil {
		return err
	}
	for i := range entries {
		if err := s.explainKey(ctx, q, &entries[i], &all[i]); err != nil {
			return err
		}
	}
	return nil
}

// values reads the values of keys in one round trip, or in two for a user that may not ask for the
// time.
func (s *Store) values(ctx context.Context, q *store.Query, entries []entry) ([]values, error) {
	var commands rueidis.Commands
	ask := func(words ...string) {
		commands = append(commands, s.client.B().Arbitrary(words[0]).Keys(words[1]).Args(words[2:]...).Build())
	}
	for i := range entries {
		state, record := s.names.state(entries[i].Key), s.names.record(entries[i].Key)
		ask("GET", state)
		ask("ZRANGE", s.names.queue(entries[i].Key), "0", "499", "WITHSCORES")
		if q.Data {
			ask("GET", record)
		} else {
			ask("GETRANGE", record, "0", "64")
			ask("STRLEN", record)
		}
	}
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	results := s.client.DoMulti(ctx, commands...)
	next := func() rueidis.RedisResult {
		r := results[0]
		results = results[1:]
		return r
	}
	all := make([]values, len(entries))
	for i := range entries {
		v := &all[i]
		v.now = now
		if v.state, err = bytesOf(next()); err != nil {
			return nil, err
		}
		if v.members, err = scoredOf(next()); err != nil {
			return nil, err
		}
		if v.record, err = bytesOf(next()); err != nil {
			return nil, err
		}
		v.size = len(v.record) - recordHead
		if !q.Data {
			n, err := next().AsInt64()
			if err != nil {
				return nil, explain("STRLEN", err)
			}
			v.size = int(n) - recordHead
		}
	}
	if now == 0 {
		err = s.dates(ctx, entries, all)
	}
	return all, err
}

// now returns the server's time in µs. It returns 0 if the user may not ask for that, and on a
// Cluster, whose servers have a clock each.
func (s *Store) now(ctx context.Context) (int64, error) {
	if s.names.cluster {
		return 0, nil
	}
	clock, err := s.client.Do(ctx, s.client.B().Time().Build()).AsIntSlice()
	if err = explained("TIME", err); errors.Is(err, ErrUnauthorized) {
		return 0, nil
	}
	if err == nil && len(clock) != 2 {
		err = errForeign
	}
	if err != nil {
		return 0, err
	}
	return clock[0]*1e6 + clock[1], nil
}

// dates finds out the time of the server of each key: every value has an expiry, so the server's
// time is the time when it expires without the time that is left.
func (s *Store) dates(ctx context.Context, entries []entry, all []values) error {
	var commands rueidis.Commands
	for i := range entries {
		for _, name := range []string{s.names.state(entries[i].Key), s.names.record(entries[i].Key)} {
			commands = append(commands, s.client.B().Arbitrary("PEXPIRETIME").Keys(name).Build(), s.client.B().Arbitrary("PTTL").Keys(name).Build())
		}
	}
	results := s.client.DoMulti(ctx, commands...)
	for i := range all {
		for pair := range slices.Chunk(results[4*i:4*i+4], 2) {
			at, err := pair[0].AsInt64()
			left, err2 := pair[1].AsInt64()
			if err = cmp.Or(err, err2); err != nil {
				return explain("PEXPIRETIME", err)
			}
			if at > 0 && left >= 0 {
				all[i].now = max(all[i].now, 1000*(at-left))
			}
		}
	}
	return nil
}

func explained(command string, err error) error {
	if err == nil {
		return nil
	}
	return explain(command, err)
}

// bytesOf returns a value; nil if there is none.
func bytesOf(r rueidis.RedisResult) ([]byte, error) {
	b, err := r.AsBytes()
	if rueidis.IsRedisNil(err) || err == nil && len(b) == 0 {
		return nil, nil
	}
	return b, explained("GET", err)
}

func scoredOf(r rueidis.RedisResult) ([]scored, error) {
	pairs, err := r.AsZScores()
	if err != nil {
		return nil, explain("ZRANGE", err)
	}
	all := make([]scored, len(pairs))
	for i, p := range pairs {
		if len(p.Member) != 17 {
			return nil, explainForeign()
		}
		all[i] = scored{token: []byte(p.Member[1:]), reserves: p.Member[0] == 1, number: int64(p.Score)}
	}
	return all, nil
}

// explainForeign is the error of a value that the store has not written.
func explainForeign() error {
	f, _ := meaning(errForeign.Error())
	return f
}

// explainKey describes a key by its values.
func (s *Store) explainKey(ctx context.Context, q *store.Query, e *entry, v *values) error {
	k := &keyState{}
	if v.now == 0 {
		v.state, v.record = nil, nil // they have expired meanwhile
	}
	if v.state != nil {
		var err error
		if k, err = readState(v.state); err != nil {
			return explainForeign()
		}
	}
	k.advance(v.now)
	left := func(ends int64) time.Duration { return time.Duration(ends-v.now) * time.Microsecond }
	since := func(began int64) time.Duration { return time.Duration(max(v.now-began, 0)) * time.Microsecond }
	e.tokens = make(map[string]store.Token)
	add := func(l *lease) {
		e.tokens[l.token.ID()] = l.token
		e.Runs = append(e.Runs, store.Run{
			ID: l.token.ID(), Fence: uint64(l.fence), Attempt: int(l.number), Since: since(l.since), Left: left(l.ends), Owner: l.owner,
		})
	}
	for i := range k.leases {
		e.Permits = k.leases[0].permits
		add(&k.leases[i])
	}
	if k.abandoned != nil {
		add(k.abandoned)
	}
	if v.record != nil {
		r, err := readRecord(v.record)
		if err != nil {
			return explainForeign()
		}
		if r.ends > v.now {
			e.tokens[r.token.ID()] = r.token
			e.Record = &store.RecordInfo{ID: r.token.ID(), Bytes: v.size, Age: since(r.written), Left: left(r.ends)}
			if q.Data {
				e.Record.Data = r.data
			}
		}
	}
	if k.queue > 0 {
		if err := s.explainQueue(ctx, q, e, k, v); err != nil {
			return err
		}
	}
	unknown := k.abandoned != nil && k.abandoned.once
	storekit.Describe(&e.Entry, len(k.leases) > 0, unknown, k.abandoned != nil && !unknown)
	return nil
}

// explainQueue counts the places of a key, and describes the first ones. It reads whether a place
// has ended until it has found readMost that have not.
func (s *Store) explainQueue(ctx context.Context, q *store.Query, e *entry, k *keyState, v *values) error {
	front := false // the place in front was found
	var counts storekit.Queue
	live := 0
	for at, members, places := 0, v.members, v.places; len(members) > 0; {
		if live >= readMost {
			for _, m := range members {
				counts.Add(m.number, m.reserves, k.leased(m.number))
			}
		} else {
			for i := range places {
				p := &places[i]
				if p.ends <= v.now || p.kept {
					continue
				}
				if !front && !k.leased(p.number) {
					if k.gives(p, v.now) {
						continue
					}
					front = true
				}
				live++
				use := counts.Add(p.number, p.reserves(), k.leased(p.number))
				if !q.Places || len(e.Places) == readMost {
					continue
				}
				x := store.PlaceInfo{
					Token: p.token, Left: time.Duration(p.ends-v.now) * time.Microsecond, Reserved: p.reserves(), Use: use, Owner: p.owner,
				}
				if x.Reserved {
					x.Blocks = time.Duration(k.blocks(p, v.now)) * time.Microsecond
				}
				e.Places = append(e.Places, x)
			}
		}
		if len(members) < readMost {
			break
		}
		at += len(members)
		var err error
		members, err = scoredOf(s.client.Do(ctx, s.client.B().Zrange().Key(s.names.queue(e.Key)).
			Min(strconv.Itoa(at)).Max(strconv.Itoa(at+readMost-1)).Withscores().Build()))
		if err == nil && len(members) > 0 && live < readMost {
			places, err = placesOf(s.client.Do(ctx, s.placesOf(e.Key, members)))
		}
		if err != nil {
			return err
		}
	}
	e.Waiters, e.Reserved = counts.Waiters, counts.Reserved
	return nil
}

// queues reads the first places of the keys in one round trip.
func (s *Store) queues(ctx context.Context, entries []entry, all []values) error {
	var commands rueidis.Commands
	var of []*values
	for i := range entries {
		if v := &all[i]; len(v.members) > 0 {
			commands, of = append(commands, s.placesOf(entries[i].Key, v.members)), append(of, v)
		}
	}
	if len(of) == 0 {
		return nil
	}
	for i, r := range s.client.DoMulti(ctx, commands...) {
		var err error
		if of[i].places, err = placesOf(r); err != nil {
			return err
		}
	}
	return nil
}

// placesOf returns the command that reads places.
func (s *Store) placesOf(key store.Key, members []scored) rueidis.Completed {
	command := s.client.B().Arbitrary("HMGET").Keys(s.names.waiting(key))
	for _, m := range members {
		command = command.Args(string(m.token))
	}
	return command.Build()
}

// placesOf returns places, except those that are gone.
func placesOf(r rueidis.RedisResult) ([]place, error) {
	got, err := r.ToArray()
	if err != nil {
		return nil, explain("HMGET", err)
	}
	all := make([]place, 0, len(got))
	for i := range got {
		b, err := got[i].AsBytes()
		if rueidis.IsRedisNil(err) {
			continue
		}
		p, wrong := readPlace(b)
		if err != nil || wrong != nil {
			return nil, explainForeign()
		}
		all = append(all, p)
	}
	return all, nil
}
