//go:build nightly

package redisstore

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestReplicas: what has to be on a replica does not count before it is there.
func TestReplicas(t *testing.T) {
	t.Parallel()
	const patience = 2 * time.Second
	for name, start := range map[string]func(*testing.T) (url string, master, replica *servertest.RedisServer){
		"Redis": func(t *testing.T) (string, *servertest.RedisServer, *servertest.RedisServer) {
			master := servertest.Redis(t, nil)
			replica := servertest.Redis(t, &servertest.RedisOptions{ReplicaOf: master})
			follows(t, master, replica)
			return master.URL(), master, replica
		},
		"Valkey": func(t *testing.T) (string, *servertest.RedisServer, *servertest.RedisServer) {
			master := servertest.Redis(t, &servertest.RedisOptions{Valkey: true})
			replica := servertest.Redis(t, &servertest.RedisOptions{Valkey: true, ReplicaOf: master})
			follows(t, master, replica)
			return master.URL(), master, replica
		},
		"Cluster": func(t *testing.T) (string, *servertest.RedisServer, *servertest.RedisServer) {
			c := servertest.RedisCluster(t, &servertest.ClusterOptions{NodeTimeout: time.Minute})
			k := key("k")
			b := bucket(k)
			master := c.MasterOf("{" + string(b[:]) + "}")
			return c.URL(), master, c.ReplicasOf(master)[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, master, replica := start(t)
			s := open(t, url, &Options{Replicas: 1, ReplicaWait: patience})
			other := open(t, url, &Options{Replicas: 1, ReplicaWait: patience})
			free := func(what string) {
				t.Helper()
				if left := leftover(t, master, "dibs"); len(left) > 0 {
					t.Errorf("%s: %q was left", what, left)
				}
			}

			// While the replica is there, all is as ever.
			c := lock("k", answered)
			mustGrant(t, s, c)
			if got := names(replica, "dibs"); !slices.Contains(got, s.names.state(c.Key)) {
				t.Errorf("the replica has %q, and nothing of the grant", got)
			}
			if answer, err := renew(t, s, c); answer != nil || err != nil {
				t.Errorf("the renewal was answered %v, %v", answer, err)
			}
			mustSettle(t, s, c, store.Release)
			free("after a release")

			// A grant that the replica does not have is refused, and undone.
			replica.Pause()
			start := time.Now()
			refused := lock("k", answered)
			a, err := claim(t, s, refused)
			if err != nil || !errors.Is(a.Err, ErrNotReplicated) || a.State != 0 {
				t.Errorf("a claim was answered %+v, %v; want ErrNotReplicated", a, err)
			}
			if d := time.Since(start); d < patience {
				t.Errorf("the refusal came after %v; ReplicaWait is %v", d, patience)
			}
			testkit.Eventually(t, "the grant is undone", func() bool {
				answer, err := settle(t, s, refused, store.Undo)
				return err == nil && errors.Is(answer, store.ErrLost)
			})
			free("after the refusal")

			// A call that grants nothing waits for no replica.
			replica.Continue()
			held := lock("k", answered)
			testkit.Eventually(t, "it is granted again", func() bool {
				a, err := claim(t, s, held)
				return err == nil && a.State == store.Granted
			})
			replica.Pause()
			if a, err := claim(t, s, lock("k")); err != nil || a.State != store.Held {
				t.Errorf("a claim of a held key was answered %+v, %v", a, err)
			}
			if a, err := claim(t, s, lock("k", func(c *store.Claim) { c.Mode = store.Look })); err != nil || a.State != store.Held {
				t.Errorf("a look at a held key was answered %+v, %v", a, err)
			}

			// A renewal is none, and no loss.
			if answer, err := renew(t, s, held); !errors.Is(answer, ErrNotReplicated) || err != nil {
				t.Errorf("a renewal was answered %v, %v; want ErrNotReplicated", answer, err)
			}

			// A record that the replica does not have is not kept yet, however
			// often it is sent, and is found as soon as it has.
			for range 2 {
				if answer, err := settle(t, s, held, store.Keep); !errors.Is(answer, ErrNotReplicated) || err != nil {
					t.Errorf("a record was answered %v, %v; want ErrNotReplicated", answer, err)
				}
			}
			// WAIT covers what its own connection wrote, so the store that kept the record proves little.
			for name, asked := range map[string]*Store{"the store that kept it": s, "another store": other} {
				if a, err := claim(t, asked, lock("k", answered)); err != nil || !errors.Is(a.Err, ErrNotReplicated) {
					t.Errorf("%s answered a claim %+v, %v by a record that the replica does not have; want ErrNotReplicated", name, a, err)
				}
			}
			replica.Continue()
			testkit.Eventually(t, "the record is kept", func() bool {
				answer, err := settle(t, s, held, store.Keep)
				return answer == nil && err == nil
			})
			if a, err := claim(t, s, lock("k", answered)); err != nil || a.State != store.Done || string(a.Record.Data) != "answer" {
				t.Errorf("the record: %+v, %v", a, err)
			}
			if got := names(replica, "dibs"); !slices.Contains(got, newName(s, held.Key, 'r')) {
				t.Errorf("the replica has %q, and no record", got)
			}
		})
	}
}

// TestReplicasLoseHolders: a holder whose renewals reach no replica loses its
// lease before a replica that takes over could give it to another.
func TestReplicasLoseHolders(t *testing.T) {
	t.Parallel()
	master := servertest.Redis(t, nil)
	replica := servertest.Redis(t, &servertest.RedisOptions{ReplicaOf: master})
	follows(t, master, replica)
	const ttl = 12 * time.Second
	s := open(t, master.URL(), &Options{Replicas: 1, ReplicaWait: 300 * time.Millisecond})
	c := newClient(t, s, &dibs.Options{Namespace: "test", TTL: ttl})
	lease, err := c.Acquire(t.Context(), "k", nil)
	for errors.Is(err, ErrNotReplicated) { // in that time, on a slow machine
		lease, err = c.Acquire(t.Context(), "k", nil)
	}
	testkit.Must(t, err)
	first := lease.Until()
	testkit.Eventually(t, "a renewal with its replica there", func() bool { return lease.Until().After(first) })
	stopReplication(t, master, []*servertest.RedisServer{replica})
	replica.Promote()
	second := open(t, replica.URL(), nil)
	testkit.Eventually(t, "the replica grants the key to another", func() bool {
		a, err := claim(t, second, lock("k"))
		return err == nil && a.State == store.Granted
	})
	if now := time.Now(); now.Before(lease.Until()) {
		t.Fatalf("the second was granted at %v, and the first has the key until %v", now, lease.Until())
	}
	<-lease.Context().Done()
	if cause := context.Cause(lease.Context()); !errors.Is(cause, store.ErrLost) {
		t.Errorf("the first holder's context ended with %v, want ErrLost", cause)
	}
	_ = lease.Release() // it is lost
}

// TestGrantsWaitForReplicas: a grant that too few replicas have is lost with the
// master. Where Replicas says that it does not count until they have it, its
// waiter is woken, and what it is answered waits for them.
func TestGrantsWaitForReplicas(t *testing.T) {
	master := servertest.Redis(t, nil)
	replica := servertest.Redis(t, &servertest.RedisOptions{ReplicaOf: master})
	replica.AwaitReplica()
	prefix := testkit.Own()
	for name, test := range map[string]struct {
		options *Options
		pushed  bool
	}{
		"none has to":      {&Options{Prefix: prefix}, true},
		"replicas have to": {&Options{Prefix: prefix, Replicas: 1, ReplicaWait: time.Minute}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, master.URL(), test.options)
			w := newWakeUps(t, s)
			pushed := 0
			for range 20 {
				holder, waiter := lock("k"), lock("k", queued)
				mustGrant(t, s, holder)
				if a, err := claim(t, s, waiter); err != nil || a.State != store.Held {
					t.Fatalf("the waiter was answered %+v, %v", a, err)
				}
				mustSettle(t, s, holder, store.Release)
				if w.next(waiter.Token).State == store.Granted {
					pushed++
				}
				mustGrant(t, s, waiter)
				mustSettle(t, s, waiter, store.Release)
			}
			if pushed > 0 != test.pushed {
				t.Errorf("%d grants were pushed", pushed)
			}
		})
	}
}

// follows waits until a replica is in step, and is sent what is written from then
// on: a new one first has to say that it is ready, which it does every second.
func follows(t *testing.T, master, replica *servertest.RedisServer) {
	t.Helper()
	replica.AwaitReplica()
	conn, err := master.Dial()
	testkit.Must(t, err)
	defer conn.Close()
	testkit.Eventually(t, "the replica follows", func() bool {
		if _, err := conn.Do("PUBLISH", "something", "to replicate"); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Do("WAIT", 1, 100)
		return err == nil && n == int64(1)
	})
}
