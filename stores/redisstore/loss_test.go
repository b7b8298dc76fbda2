package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// losing is a way in which a server loses what it knew.
type losing struct {
	open func() *Store
	lag  func() // what is granted from here on gets lost
	lose func() // returns when there is a server again
}

func TestLostData(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]func(*servertest.RedisServer){
		"Flushed": func(s *servertest.RedisServer) { s.Must("FLUSHALL") },
		"Restarted": func(s *servertest.RedisServer) {
			s.Kill()
			s.Restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, nil)
			loseUnderLoad(t, losing{
				open: func() *Store { return open(t, server.URL(), nil) }, lag: func() {}, lose: func() { how(server) },
			})
		})
	}
}

// loseUnderLoad has some hold keys and some wait for them when the server loses its data.
// The holders learn that their leases are lost, all waiters are served, and the fences
// go on above those that were lost.
func loseUnderLoad(t *testing.T, l losing) {
	const keys, waiters = 5, 4
	holder := l.open()
	l.lag()
	held, fences := make([]store.Claim, keys), make([][]uint64, keys)
	for i := range held {
		held[i] = lock(fmt.Sprint("key ", i))
		fences[i] = append(fences[i], mustGrant(t, holder, held[i]).Fence)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Limit)
	defer cancel()
	var waiting sync.WaitGroup
	var mu sync.Mutex // guards the fences
	for p := range 2 {
		s := l.open()
		client := newClient(t, s, &dibs.Options{Namespace: "test"})
		for i := range keys {
			for range waiters / 2 {
				waiting.Go(func() {
					lease, err := client.Acquire(ctx, held[i].Key.Name, nil)
					if err != nil {
						t.Errorf("a waiter of process %d: %v", p, err)
						return
					}
					mu.Lock()
					fences[i] = append(fences[i], lease.Fence())
					mu.Unlock()
					// A dead connection may be noticed late.
					if err := lease.Release(); err != nil && !errors.Is(err, dibs.ErrStore) {
						t.Errorf("its release: %v", err)
					}
				})
			}
		}
		testkit.Eventually(t, "all wait", func() bool {
			waits := 0
			for e, err := range s.List(t.Context(), store.Query{}) {
				testkit.Must(t, err)
				waits += e.Waiters
			}
			return waits == (p+1)*keys*waiters/2
		})
	}

	l.lose()
	waiting.Wait()
	for i, c := range held {
		for what, ask := range map[string]func() (answer, err error){
			"a renewal": func() (answer, err error) { return renew(t, holder, c) },
			"a release": func() (answer, err error) { return settle(t, holder, c, store.Release) },
		} {
			var answer error
			testkit.Eventually(t, what+" is answered", func() (answered bool) { // each connection may be dead
				var err error
				answer, err = ask()
				return err == nil
			})
			if !errors.Is(answer, store.ErrLost) {
				t.Errorf("%s of %s was answered %v; want ErrLost", what, c.Key.Name, answer)
			}
		}
		if len(fences[i]) != 1+waiters {
			t.Errorf("%d waiters for %s were served, want %d", len(fences[i])-1, c.Key.Name, waiters)
		}
		for j := 1; j < len(fences[i]); j++ {
			if fences[i][j] <= fences[i][j-1] {
				t.Errorf("%s: the fences are not in order; the first one was lost: %v", c.Key.Name, fences[i])
				break
			}
		}
	}
}

// replicated starts a master with a replica, which is sent what is written from then on: a new one
// first has to say that it is ready, which it does every second.
func replicated(t *testing.T, valkey bool) (master, replica *servertest.RedisServer) {
	t.Helper()
	master = servertest.Redis(t, &servertest.RedisOptions{Valkey: valkey})
	replica = servertest.Redis(t, &servertest.RedisOptions{Valkey: valkey, ReplicaOf: master})
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

// TestPushedGrantWaitsForReplicas: a grant that too few replicas have is lost with the master. Where
// Replicas says that it does not count until they have it, a waiter is told to ask, is not told that
// it was granted, and is granted when they have it.
func TestPushedGrantWaitsForReplicas(t *testing.T) {
	t.Parallel()
	master, _ := replicated(t, false)
	for name, o := range map[string]*Options{
		"alone":      {Prefix: testkit.Own()},
		"replicated": {Prefix: testkit.Own(), Replicas: 1, ReplicaWait: time.Minute},
	} {
		s := open(t, master.URL(), o)
		woken := newWakeUps(t, s)
		for range 3 { // the first waiter is also woken by the subscription
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
			if a := woken.next(waiter.Token); a.State == store.Granted && name != "alone" {
				t.Errorf("%s: the waiter was told %+v", name, a)
			}
			mustGrant(t, s, waiter)
			mustSettle(t, s, waiter, store.Release)
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
