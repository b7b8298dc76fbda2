package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/store"
)

// waitersOf returns how many wait for a key, or have a reserved place.
func waitersOf(t testing.TB, s *Store, k store.Key) int {
	t.Helper()
	n := 0
	for e, err := range s.List(t.Context(), store.Query{Namespace: &k.Namespace, Name: k.Name}) {
		testkit.Must(t, err)
		n += e.Waiters + e.Reserved
	}
	return n
}

// TestScriptsForgotten: every verb works on a server that has just forgotten all
// scripts, as a server does that is restarted or takes over.
func TestScriptsForgotten(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	forgotten := func() context.Context {
		server.Must("SCRIPT", "FLUSH")
		return t.Context()
	}
	c, once := lock("k"), lock("once", answered)
	forgotten()
	mustGrant(t, s, c)
	forgotten()
	if answer, err := renew(t, s, c); answer != nil || err != nil {
		t.Errorf("renewing: %v, %v", answer, err)
	}
	forgotten()
	for e, err := range s.List(t.Context(), store.Query{Name: "k"}) {
		if err != nil || len(e.Runs) != 1 {
			t.Errorf("listing: %+v, %v", e, err)
		}
	}
	if n, err := s.ForceRelease(forgotten(), c.Key, ""); n != 1 || err != nil {
		t.Errorf("evicting: %d, %v", n, err)
	}
	mustGrant(t, s, once)
	forgotten()
	mustSettle(t, s, once, store.Keep)
	if forgot, err := s.Forget(forgotten(), once.Key, ""); !forgot || err != nil {
		t.Errorf("forgetting: %v, %v", forgot, err)
	}
	unknown := lock("unknown", answered, func(c *store.Claim) { c.AtMostOnce = true })
	mustGrant(t, s, unknown)
	mustSettle(t, s, unknown, store.Abandon)
	if resolved, err := s.Resolve(forgotten(), unknown.Key, "", []byte("resolved"), time.Minute); !resolved || err != nil {
		t.Errorf("resolving: %v, %v", resolved, err)
	}
	// Several runs of a script in one round trip.
	many, answers := make([]store.Claim, 3*maxBatch), make([]store.Answer, 3*maxBatch)
	for i := range many {
		many[i] = lock(fmt.Sprint("many ", i))
	}
	testkit.Must(t, s.Claim(forgotten(), many, answers))
	for i, a := range answers {
		if a.State != store.Granted || a.Err != nil {
			t.Errorf("claim %d was answered %+v", i, a)
		}
	}
}

// TestDeafAtRelease: the subscriptions end while the keys are released, so that the
// publishing meets them dead, dying or alive. Every waiter is served.
func TestDeafAtRelease(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	endSubscriptions(t, server.URL(), []*servertest.RedisServer{server}, 1)
}

// endSubscriptions ends all subscriptions while keys are released, again and again. Every
// waiter is served.
func endSubscriptions(t *testing.T, url string, masters []*servertest.RedisServer, rounds int) {
	const keys = 40
	o := &Options{Prefix: testkit.Own()}
	holders := newClient(t, open(t, url, o), &dibs.Options{Namespace: "test"})
	waiting := []*Store{open(t, url, o), open(t, url, o)}
	waiters := []*dibs.Client{
		newClient(t, waiting[0], &dibs.Options{Namespace: "test"}), newClient(t, waiting[1], &dibs.Options{Namespace: "test"}),
	}
	for round := range rounds {
		leases := make([]*dibs.Lease, keys)
		for i := range leases {
			var err error
			if leases[i], err = holders.Acquire(t.Context(), fmt.Sprint(round, " ", i), nil); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit) // within which all are served
		var wait sync.WaitGroup
		for i := range leases {
			wait.Go(func() {
				lease, err := waiters[i%2].Acquire(ctx, fmt.Sprint(round, " ", i), nil)
				if err != nil {
					t.Error(err)
					return
				}
				if err := lease.Release(); err != nil && !errors.Is(err, dibs.ErrStore) {
					t.Error(err)
				}
			})
		}
		testkit.Eventually(t, "all wait", func() bool {
			n := 0
			for e, err := range waiting[0].List(t.Context(), store.Query{}) {
				testkit.Must(t, err)
				n += e.Waiters
			}
			return n == keys
		})
		for _, master := range masters {
			wait.Go(func() {
				if _, err := master.Do("CLIENT", "KILL", "TYPE", "pubsub"); err != nil {
					t.Error(err)
				}
			})
		}
		for _, lease := range leases {
			wait.Go(func() {
				// On a cluster the connection that ends may be the one of the call.
				if err := lease.Release(); err != nil && !errors.Is(err, dibs.ErrStore) {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		cancel()
	}
}

// TestDeadWaiters: twenty waiters in front are killed, or have left without giving up their
// places. The release continues to the waiter behind them in the same step.
func TestDeadWaiters(t *testing.T) {
	t.Parallel()
	url := ownURL()
	server, s := sharedRedis(), open(t, url, &Options{pushedTTL: testkit.Limit})
	holder := lock(waitedFor)
	mustGrant(t, s, holder)
	killed := []*failpoint.Child{failpoint.Start(t, "", testkit.Child("waiters", url)), failpoint.Start(t, "", testkit.Child("waiters", url))}
	var closed []*Store
	for range 2 {
		gone := open(t, url, nil)
		for range waitersOfProcess {
			mustListen(t, gone, lock(waitedFor, queued))
		}
		closed = append(closed, gone)
	}
	testkit.Eventually(t, "all waiters have a channel", func() bool { return subscribedOf(s, holder.Key) == 4*waitersOfProcess })
	alive := lock(waitedFor, queued)
	if a := mustListen(t, s, alive); a.Ahead != 4*waitersOfProcess {
		t.Fatalf("%d are ahead, want %d", a.Ahead, 4*waitersOfProcess)
	}
	for _, p := range killed {
		p.Kill()
	}
	for _, gone := range closed {
		testkit.Must(t, gone.Close())
	}
	testkit.Eventually(t, "the server has noticed", func() bool {
		channels, _ := server.Must("PUBSUB", "CHANNELS", s.Prefix()+":wake:*").([]any)
		return len(channels) == 1
	})

	mustSettle(t, s, holder, store.Release)
	for e, err := range s.List(t.Context(), store.Query{Name: waitedFor}) {
		testkit.Must(t, err)
		if len(e.Runs) != 1 || e.Runs[0].ID != alive.Token.ID() {
			t.Errorf("after the release there is %+v; want the lease of %s", e, alive.Token.ID())
		}
	}
	mustGrant(t, s, alive)
	mustSettle(t, s, alive, store.Release)
}

// subscribedOf returns how many waiters of a key have a channel.
func subscribedOf(s *Store, k store.Key) int {
	n := 0
	places, _ := sharedRedis().Must("HVALS", newName(s, k, 'w')).([]any)
	for _, p := range places {
		if strings.Contains(p.(string), s.Prefix()+":wake:") {
			n++
		}
	}
	return n
}

// TestLostReplies: the server does what it is asked, and the connection ends
// before it says so.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, w *wire.Wire, c, other *dibs.Client, waits func()){
		"Claim": func(t *testing.T, w *wire.Wire, c, _ *dibs.Client, _ func()) {
			lost := w.LoseReplyTo("test key:s")
			lease := acquireSoon(t, c)
			testkit.Await(t, "the loss of the reply", lost)
			if lease.Attempt() != 1 {
				t.Errorf("it is attempt %d, want 1", lease.Attempt())
			}
			testkit.Check(t, lease.Release())
		},
		"Place": func(t *testing.T, w *wire.Wire, c, other *dibs.Client, _ func()) {
			held := acquireSoon(t, other)
			lost := w.LoseReplyTo("test key:s")
			waiting := acquireLater(t, c)
			testkit.Await(t, "the loss of the reply", lost)
			servedSoon(t, held, waiting)
		},
		"Turn": func(t *testing.T, w *wire.Wire, c, other *dibs.Client, waits func()) {
			held := acquireSoon(t, other)
			waiting := acquireLater(t, c)
			waits()
			lost := w.LoseReplyTo("test key:s") // of its next question, which may be granted
			servedSoon(t, held, waiting)
			w.Mend()
			select {
			case <-lost: // it asked; otherwise the grant was pushed
			default:
			}
		},
		"Release": func(t *testing.T, w *wire.Wire, c, other *dibs.Client, waits func()) {
			held := acquireSoon(t, c)
			waiting := acquireLater(t, other)
			waits()
			lost := w.LoseReplyTo("test key:s")
			servedSoon(t, held, waiting)
			testkit.Await(t, "the loss of the reply", lost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := servertest.NewWire(t, sharedRedis().Addr())
			o := &Options{Prefix: testkit.Own()}
			s, other := open(t, sharedRedis().URLAt(w.Addr()), o), open(t, sharedRedis().URL(), o)
			clients := &dibs.Options{Namespace: "test"}
			lose(t, w, newClient(t, s, clients), newClient(t, other, clients), func() {
				testkit.Eventually(t, "it waits", func() bool { return waitersOf(t, other, key("key")) == 1 })
			})
			testkit.Eventually(t, "nothing is left", func() bool { return len(leftover(t, sharedRedis(), o.Prefix)) == 0 })
		})
	}
}

// acquireSoon takes the key, which is free.
func acquireSoon(t *testing.T, c *dibs.Client) *dibs.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	lease, err := c.Acquire(ctx, "key", nil)
	testkit.Must(t, err)
	return lease
}

// acquireLater waits for the key and releases it. The channel gets whether it was
// granted, and is closed when it is released.
func acquireLater(t *testing.T, c *dibs.Client) <-chan bool {
	served := make(chan bool, 1)
	go func() {
		defer close(served)
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
		defer cancel()
		lease, err := c.Acquire(ctx, "key", nil)
		if err != nil {
			t.Error(err)
			return
		}
		served <- true
		if err := lease.Release(); err != nil && !errors.Is(err, dibs.ErrStore) {
			t.Error(err) // its reply may be the one that is lost
		}
	}()
	return served
}

// servedSoon releases the key for a waiter.
func servedSoon(t *testing.T, held *dibs.Lease, waiting <-chan bool) {
	t.Helper()
	if err := held.Release(); err != nil && !errors.Is(err, dibs.ErrStore) {
		t.Error(err)
	}
	for range waiting { // until it has released
	}
}
