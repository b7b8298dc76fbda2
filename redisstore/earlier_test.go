package redisstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// TestEarlierPlace: a place that was reserved before there was a Hold has none. One
// without a Hold is as it was, to the byte.
func TestEarlierPlace(t *testing.T) {
	t.Parallel()
	server, s := sharedRedis(), open(t, ownURL(), nil)
	place := lock("k", reserved, func(c *dibs.Claim) { c.Place = time.Hour })
	mustWait(t, s, place)
	fields := server.Must("EVAL", `return #cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))`,
		1, newName(s, key("k"), 'w'), string(place.Token[:]))
	if fields != int64(13) {
		t.Fatalf("a place without a Hold has %v fields, and had 13 before there was one", fields)
	}
	if a, err := claim(t, s, lock("k")); err != nil || a.State != dibs.Held || a.Left < 59*time.Minute {
		t.Errorf("a stranger was answered %+v, %v; want it held for an hour", a, err)
	}
	worker := lock("k", func(c *dibs.Claim) { c.Redeems = place.Token })
	mustGrant(t, s, worker)
	mustSettle(t, s, worker, dibs.Abandon)
	if a, err := claim(t, s, lock("k")); err != nil || a.State != dibs.Held || a.Left < 59*time.Minute {
		t.Errorf("a stranger was answered %+v, %v, as the place stands again; want it held for an hour", a, err)
	}
}

// TestEarlierQueue: earlier versions do not say whether a record can answer those
// who wait. One that is answered must not run, whichever version let it wait.
func TestEarlierQueue(t *testing.T) {
	t.Parallel()
	server := sharedRedis()
	for name, as := range map[string]func(s *Store, waiter dibs.Claim){
		"begun by an earlier version": func(s *Store, waiter dibs.Claim) {
			mustWait(t, s, waiter)
			server.Must("EVAL", `local st = cmsgpack.unpack(redis.call('GET', KEYS[1]))
				st[8] = nil
				redis.call('SET', KEYS[1], cmsgpack.pack(st), 'KEEPTTL')`, 1, newName(s, key("k"), 's'))
		},
		"used by both": func(s *Store, waiter dibs.Claim) {
			asked := waiter.MaxAge
			waiter.MaxAge = 0
			mustWait(t, s, waiter)
			server.Must("EVAL", `local p = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
				p[3] = tonumber(ARGV[2])
				redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(p))`,
				1, newName(s, key("k"), 'w'), string(waiter.Token[:]), asked.Microseconds())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, ownURL(), nil)
			holder, waiter := lock("k"), lock("k", queued, func(c *dibs.Claim) { c.MaxAge = time.Hour })
			mustGrant(t, s, holder)
			as(s, waiter)
			mustSettle(t, s, holder, dibs.Keep)
			for e, err := range s.List(t.Context(), dibs.Query{Name: "k"}) {
				if err != nil || len(e.Attempts) != 0 || e.Waiters != 0 {
					t.Errorf("after the answer was kept there is %+v, %v", e, err)
				}
			}
			if a, err := claim(t, s, waiter); err != nil || a.State != dibs.Done {
				t.Errorf("the waiter was answered %+v, %v; want the record", a, err)
			}
		})
	}
}
