//go:build nightly

package redisstore

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/store"
)

// TestMessageThroughReplica: a master's messages also reach the subscribers of its replicas. A
// subscriber of a former master is one for a while. The master does not count these subscribers,
// and takes their waiters for dead. So it must not have pushed grants to them.
func TestMessageThroughReplica(t *testing.T) {
	for name, start := range map[string]func(*testing.T) (url string, master, replica *servertest.RedisServer){
		"Redis": func(t *testing.T) (string, *servertest.RedisServer, *servertest.RedisServer) {
			master := servertest.Redis(t, nil)
			replica := servertest.Redis(t, &servertest.RedisOptions{ReplicaOf: master})
			follows(t, master, replica)
			return master.URL(), master, replica
		},
		"Cluster": func(t *testing.T) (string, *servertest.RedisServer, *servertest.RedisServer) {
			b := bucket(key("k"))
			master := sharedCluster().MasterOf("{" + string(b[:]) + "}")
			return sharedCluster().URL(), master, sharedCluster().ReplicasOf(master)[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, master, replica := start(t)
			s := open(t, url, &Options{Prefix: testkit.Own()})
			defer s.Notify(func(store.Token, store.Answer) {})()
			c := listenElsewhere(s, key("k"))
			conn, err := replica.Dial()
			testkit.Must(t, err)
			defer conn.Close()
			subscribe, publish := "SUBSCRIBE", "PUBLISH"
			if s.names.cluster {
				subscribe, publish = "SSUBSCRIBE", "SPUBLISH"
			}
			if _, err := conn.Do(subscribe, c.name); err != nil {
				t.Fatal(err)
			}
			receives(t, conn, func(message string) { _, _ = master.Do(publish, c.name, message) })

			holder := lock("k")
			waiters := []store.Claim{lock("k", queued), lock("k", queued), lock("k", queued)}
			mustGrant(t, s, holder)
			for _, c := range waiters {
				mustWait(t, s, c)
			}
			mustSettle(t, s, holder, store.Release)
			if _, err := master.Do(publish, c.name, "no more"); err != nil {
				t.Fatal(err)
			}
			message, err := conn.Receive()
			testkit.Must(t, err)
			if got := message.([]any)[2]; got != "no more" {
				t.Errorf("a waiter was sent %q", got)
			}
			// They ask, and have their places.
			for i, c := range waiters {
				if a := mustGrant(t, s, c); a.Attempt != 1 {
					t.Errorf("waiter %d is attempt %d", i, a.Attempt)
				}
				if a, err := claim(t, s, lock("k")); err != nil || a.State != store.Held {
					t.Errorf("a stranger was answered %+v, %v", a, err)
				}
				mustSettle(t, s, c, store.Release)
			}
		})
	}
}

// receives waits until what is published arrives on a connection: the nodes of a cluster
// connect with each other when they like, and send nothing twice.
func receives(t *testing.T, conn *servertest.RedisConn, publish func(message string)) {
	t.Helper()
	var sent atomic.Int64
	var publishing sync.WaitGroup
	defer publishing.Wait()
	over, stop := context.WithCancel(t.Context())
	defer stop()
	publishing.Go(func() {
		for over.Err() == nil {
			publish(strconv.FormatInt(sent.Add(1), 10))
			select {
			case <-time.After(50 * time.Millisecond):
			case <-over.Done():
			}
		}
	})
	for last := int64(0); last < sent.Load() || over.Err() == nil; {
		message, err := conn.Receive()
		testkit.Must(t, err)
		stop()
		publishing.Wait()
		last, _ = strconv.ParseInt(message.([]any)[2].(string), 10, 64)
	}
}

// TestSubscribedAtReplica: the connection that a process listens on is made in a
// failover, and leads to the server that is a replica from then on. The process gets
// messages there, but is not counted; it finds out by itself, and is not passed over any more.
func TestSubscribedAtReplica(t *testing.T) {
	t.Parallel()
	master := servertest.Redis(t, nil)
	replica := servertest.Redis(t, &servertest.RedisOptions{ReplicaOf: master})
	follows(t, master, replica)
	// One address, which leads elsewhere for a while; claims have the one connection that is there already.
	var astray atomic.Bool
	s := overClient(t, rueidis.ClientOption{
		InitAddress: []string{master.Addr()}, ForceSingleClient: true, DisableCache: true, PipelineMultiplex: -1,
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if astray.Load() {
				addr = replica.Addr()
			}
			return d.DialContext(ctx, "tcp", addr)
		},
	})
	holder, waiter := lock("k"), lock("k", queued)
	mustGrant(t, s, holder)
	astray.Store(true)
	mustWait(t, s, waiter)
	testkit.Eventually(t, "it has listened at the replica", func() bool { return commandsOf(replica)["subscribe"] > 0 })
	astray.Store(false)
	testkit.Eventually(t, "it listens at the master", func() bool {
		return subscribed(s, master, holder.Key) && !subscribed(s, replica, holder.Key)
	})

	// One behind it has no part in what is due to it now.
	other := open(t, master.URL(), &Options{Prefix: s.options.Prefix})
	defer other.Notify(func(store.Token, store.Answer) {})()
	behind := lock("k", queued)
	mustListen(t, other, behind)
	mustSettle(t, s, holder, store.Release)
	mustGrant(t, s, waiter)
}

// TestCheckWithoutAnswer: a server that pauses does not answer the check of a
// subscription, and that does not close the connection of concurrent claims.
func TestCheckWithoutAnswer(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	w := servertest.NewWire(t, server.Addr())
	s := open(t, server.URLAt(w.Addr()), nil)
	holder, waiter := lock("k"), lock("k", queued)
	mustGrant(t, s, holder)
	mustBeConnected(t, server, s, waiter)
	w.Set(wire.Trouble{Hold: true}, nil)
	granted := make(chan error)
	time.AfterFunc(listenCheck*3/2, func() { // at the next check
		_, err := claim(t, s, lock("free"))
		granted <- err
	})
	time.AfterFunc(listenCheck*5/2, w.Mend)
	testkit.Check(t, <-granted)
}

// TestReadsFromReplicas: an application's client that sends what only reads to replicas
// listens at the master, and stays there.
func TestReadsFromReplicas(t *testing.T) {
	t.Parallel()
	master := servertest.Redis(t, nil)
	replica := servertest.Redis(t, &servertest.RedisOptions{ReplicaOf: master})
	follows(t, master, replica)
	s := overClient(t, rueidis.ClientOption{
		InitAddress: []string{master.Addr()}, DisableCache: true,
		Standalone:     rueidis.StandaloneOption{ReplicaAddress: []string{replica.Addr()}},
		SendToReplicas: func(cmd rueidis.Completed) bool { return cmd.IsReadOnly() },
	})
	holder, waiter := lock("k"), lock("k", queued)
	mustGrant(t, s, holder)
	mustListen(t, s, waiter)
	testkit.Eventually(t, "it checks more than once", func() bool {
		mustWait(t, s, waiter)
		return commandsOf(master)["pubsub|numsub"] >= 3
	})
	if n := commandsOf(master)["subscribe"]; n != 1 {
		t.Errorf("it subscribed %d times", n)
	}
}

// listenElsewhere has a store believe that it is subscribed.
func listenElsewhere(s *Store, k store.Key) *channel {
	group := s.names.group(k)
	_, leave := context.WithCancel(s.subscriber.closing)
	c := &channel{name: s.names.channel(group, s.subscriber.process), leave: leave}
	c.lastWait.Store(int64(time.Since(s.subscriber.epoch)))
	c.open.Store(true)
	s.subscriber.mu.Lock()
	defer s.subscriber.mu.Unlock()
	s.subscriber.channels[group] = c
	return c
}
