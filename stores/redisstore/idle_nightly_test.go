//go:build nightly

package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestIdleChannels: on a Cluster whose servers cannot save, channels that nobody waits for any
// more are left, others still bring wake-ups, and Close ends all subscriptions. The servers'
// answers do not end the process.
func TestIdleChannels(t *testing.T) {
	t.Parallel()
	cluster := servertest.RedisCluster(t, &servertest.ClusterOptions{Replicas: -1, NodeTimeout: time.Minute})
	s := open(t, cluster.URL(), nil)
	woken := make(chan store.Token, 100)
	s.Notify(func(token store.Token, _ store.Answer) { woken <- token })
	const keys = 12 // on all servers
	var holders, waiters []store.Claim
	for i := range keys {
		name := fmt.Sprint("k", i)
		holders, waiters = append(holders, lock(name)), append(waiters, lock(name, queued))
		mustGrant(t, s, holders[i])
		mustListen(t, s, waiters[i])
	}
	for _, node := range cluster.Nodes() {
		failToSave(t, node)
	}
	// The first half is idle.
	for _, w := range waiters[:keys/2] {
		s.subscriber.mu.Lock()
		c := s.subscriber.channels[s.names.group(w.Key)]
		s.subscriber.mu.Unlock()
		c.lastWait.Store(int64(time.Since(s.subscriber.epoch) - 2*listenIdle))
	}
	testkit.Eventually(t, "the idle channels are left", func() bool {
		for _, w := range waiters[:keys/2] {
			if s.subscriber.channel(s.names.group(w.Key)) != pending {
				return false
			}
		}
		return true
	})
	for _, w := range waiters[keys/2:] {
		if s.subscriber.channel(s.names.group(w.Key)) == pending {
			t.Errorf("the channel of %v was left, too", w.Key)
		}
	}
	for _, node := range cluster.Nodes() {
		node.Must("CONFIG", "SET", "save", "")
	}
	for i, w := range waiters {
		mustListen(t, s, w) // again
		mustSettle(t, s, holders[i], store.Release)
		for testkit.Await(t, "a wake-up", woken) != w.Token {
		}
	}
	testkit.Must(t, s.Close())
	for _, w := range waiters {
		testkit.Eventually(t, "the subscription has ended", func() bool {
			return !subscribed(s, cluster.MasterOf(s.names.state(w.Key)), w.Key)
		})
	}
}
