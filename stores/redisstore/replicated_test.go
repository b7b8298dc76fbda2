package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// replicated starts a master with a replica, which follows it.
func replicated(t *testing.T, valkey bool) (master, replica *servertest.RedisServer) {
	t.Helper()
	master = servertest.Redis(t, &servertest.RedisOptions{Valkey: valkey})
	replica = servertest.Redis(t, &servertest.RedisOptions{Valkey: valkey, ReplicaOf: master})
	replica.AwaitReplica()
	return master, replica
}

// TestRecordWaitsForReplicas: a record that the replica does not have answers no claim, whichever
// process asks, and although the claim changes nothing.
func TestRecordWaitsForReplicas(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t, true) // a Redis 7.0 lets WAIT cover what others wrote, too
	alone := open(t, master.URL(), nil)
	s := open(t, master.URL(), &Options{Replicas: 1, ReplicaWait: 50 * time.Millisecond})
	replica.Pause()
	c := lock("k", answered)
	mustGrant(t, alone, c)
	mustSettle(t, alone, c, store.Keep)
	for range 2 {
		if a, err := claim(t, s, lock("k", answered)); err != nil || !errors.Is(a.Err, ErrNotReplicated) {
			t.Errorf("a claim was answered %+v, %v; want ErrNotReplicated", a, err)
		}
	}
	replica.Continue()
	testkit.Eventually(t, "the record answers", func() bool {
		a, err := claim(t, s, lock("k", answered))
		return err == nil && a.State == store.Done
	})
}

// TestPushedGrantWaitsForReplicas: where replicas must have a grant, a waiter is told to ask, and is
// not told that it was granted.
func TestPushedGrantWaitsForReplicas(t *testing.T) {
	t.Parallel()
	master, _ := replicated(t, false)
	for name, o := range map[string]*Options{
		"alone":      {Prefix: testkit.Own()},
		"replicated": {Prefix: testkit.Own(), Replicas: 1, ReplicaWait: time.Minute},
	} {
		s := open(t, master.URL(), o)
		holder, waiter := lock("k"), lock("k", queued)
		mustGrant(t, s, holder)
		mustListen(t, s, waiter)
		mustSettle(t, s, holder, store.Release)
		for e, err := range s.List(t.Context(), store.Query{Namespace: &holder.Key.Namespace, Name: "k"}) {
			testkit.Must(t, err)
			// A pushed grant may have expired by now.
			if pushed := e.Condition != store.ConditionWaiting; pushed != (name == "alone") {
				t.Errorf("%s: after the release the key is %s", name, e.Condition)
			}
		}
	}
}

// TestUndoneAfterItsCaller: a grant that the replica does not have is undone, even when its caller
// does not wait any more.
func TestUndoneAfterItsCaller(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t, false)
	s := open(t, master.URL(), &Options{Replicas: 1, ReplicaWait: time.Hour})
	replica.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	c := lock("k")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Claim(ctx, []store.Claim{c}, make([]store.Answer, 1))
	}()
	testkit.Eventually(t, "the grant waits for the replica", func() bool { return master.Info("blocked_clients") == "1" })
	cancel()
	testkit.Await(t, "the end of the claim", ended)
	if left := leftover(t, master, "dibs"); len(left) > 0 {
		t.Errorf("%q was left", left)
	}
}
