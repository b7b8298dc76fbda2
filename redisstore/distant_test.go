package redisstore

import (
	"context"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestHeardThroughReplica: what a master publishes reaches those who are
// subscribed at its replicas too, as all are for a while that were subscribed at
// a master which has become one. The master does not count them, and takes their
// waiters for dead. So it must not have told them that the key is theirs: it is
// the next one's, who would be told the same.
func TestHeardThroughReplica(t *testing.T) {
	for name, start := range map[string]func(*testing.T) (url string, replica *servertest.RedisServer){
		"Redis": func(t *testing.T) (string, *servertest.RedisServer) {
			master := servertest.Redis(t, nil)
			replica := servertest.Redis(t, &servertest.RedisOptions{ReplicaOf: master})
			follows(t, master, replica)
			return master.URL(), replica
		},
		"Cluster": func(t *testing.T) (string, *servertest.RedisServer) {
			b := bucket(key("k"))
			master := sharedCluster().MasterOf("{" + string(b[:]) + "}")
			return sharedCluster().URL(), sharedCluster().ReplicasOf(master)[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, replica := start(t)
			s := open(t, url, &Options{Prefix: ownPrefix()})
			defer s.NotifyGrants(func(dibs.Token, dibs.Answer) {})()
			c := listenElsewhere(s, key("k"))
			conn, err := replica.Dial()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			subscribe := "SUBSCRIBE"
			if s.names.cluster {
				subscribe = "SSUBSCRIBE"
			}
			if _, err := conn.Do(subscribe, c.name); err != nil {
				t.Fatal(err)
			}

			holder := lock("k")
			waiters := []dibs.Claim{lock("k", queued), lock("k", queued), lock("k", queued)}
			mustGrant(t, s, holder)
			for _, c := range waiters {
				mustWait(t, s, c)
			}
			mustSettle(t, s, holder, dibs.Release)
			for i, c := range waiters {
				message, err := conn.Receive()
				if err != nil {
					t.Fatal(err)
				}
				if got := message.([]any)[2]; got != string(c.Token[:]) {
					t.Errorf("waiter %d was told %q; want only that it should ask", i, got)
				}
			}
			// They ask, and come back to their places.
			for i, c := range waiters {
				if a := mustGrant(t, s, c); a.Attempt != 1 {
					t.Errorf("waiter %d is attempt %d", i, a.Attempt)
				}
				if a, err := claim(t, s, lock("k")); err != nil || a.State != dibs.Held {
					t.Errorf("a stranger was answered %+v, %v", a, err)
				}
				mustSettle(t, s, c, dibs.Release)
			}
		})
	}
}

// listenElsewhere has a store believe that it is listened for.
func listenElsewhere(s *Store, k dibs.Key) *channel {
	group := s.names.group(k)
	_, leave := context.WithCancel(s.ears.life)
	c := &channel{name: s.names.channel(group, s.ears.process), leave: leave}
	c.used.Store(int64(time.Since(s.ears.epoch)))
	c.open.Store(true)
	s.ears.mu.Lock()
	defer s.ears.mu.Unlock()
	s.ears.channels[group] = c
	return c
}
