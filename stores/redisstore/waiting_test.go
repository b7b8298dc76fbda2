package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

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

// TestNoReplica: with none at all nothing is granted, and the error says how many
// there have to be.
func TestNoReplica(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), &Options{Replicas: 2, ReplicaWait: 50 * time.Millisecond})
	claims := []store.Claim{lock("a"), lock("b"), lock("c")}
	answers := make([]store.Answer, len(claims))
	testkit.Must(t, s.Claim(t.Context(), claims, answers))
	for i, a := range answers {
		if !errors.Is(a.Err, ErrNotReplicated) || a.State != 0 {
			t.Errorf("claim %d was answered %+v", i, a)
		}
	}
	if left := leftover(t, sharedRedis(), s.Prefix()); len(left) > 0 {
		t.Errorf("%q was left", left)
	}
}

// wakeUps are the wake-ups of a store's waiters, by token.
type wakeUps struct {
	t       *testing.T
	arrived chan wakeUp
	early   map[store.Token]store.Answer
}

type wakeUp struct {
	token  store.Token
	answer store.Answer
}

func newWakeUps(t *testing.T, s *Store) *wakeUps {
	w := &wakeUps{t: t, arrived: make(chan wakeUp, 1000), early: map[store.Token]store.Answer{}}
	t.Cleanup(s.Notify(func(token store.Token, a store.Answer) { w.arrived <- wakeUp{token, a} }))
	return w
}

// next returns the next wake-up of a token.
func (w *wakeUps) next(token store.Token) store.Answer {
	w.t.Helper()
	late := time.NewTimer(testkit.Limit)
	defer late.Stop()
	for {
		if a, ok := w.early[token]; ok {
			delete(w.early, token)
			return a
		}
		select {
		case wakeUp := <-w.arrived:
			w.early[wakeUp.token] = wakeUp.answer
		case <-late.C:
			w.t.Fatal("a waiter got no wake-up")
		}
	}
}

// TestAboutToListen: a waiter whose process is about to subscribe has its turn before one
// behind it that could get a pushed grant.
func TestAboutToListen(t *testing.T) {
	t.Parallel()
	url := ownURL()
	s, other := open(t, url, nil), open(t, url, nil)
	newWakeUps(t, s)
	holder, first, second := lock("k"), lock("k", queued), lock("k", queued)
	mustGrant(t, s, holder)
	mustWait(t, s, first) // the first waiter
	mustListen(t, other, second)
	mustSettle(t, s, holder, store.Release)
	mustWait(t, other, second)
	mustGrant(t, s, first)
}

// TestHang: a call to a server that says nothing any more ends by itself, and closing
// does not wait for the server. When the server is back all continues.
func TestHang(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"asked", "waited for"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := servertest.NewWire(t, sharedRedis().Addr())
			s := openWithin(t, "redis://"+w.Addr()+"?prefix="+testkit.Own(), nil, 0)
			first := lock("key")
			mustGrant(t, s, first)
			if what == "waited for" {
				mustWait(t, s, lock("key", queued)) // there is a subscription now
			}
			w.Set(wire.Trouble{Hold: true}, nil)
			if _, err := claim(t, s, lock("other")); !errors.Is(err, ErrUnreachable) {
				t.Errorf("the claim ended with %v; want ErrUnreachable", err)
			}
			w.Mend()
			testkit.Eventually(t, "it is there again", func() bool {
				answer, err := renew(t, s, first)
				return answer == nil && err == nil
			})
			w.Set(wire.Trouble{Hold: true}, nil)
			closed := make(chan error, 1)
			go func() { closed <- s.Close() }()
			testkit.Check(t, testkit.Await(t, "the end of Close", closed))
			w.Mend()
		})
	}
}

// TestDialLimit: a dialer gives up a server that says nothing, and does so sooner where
// another server may have taken its place.
func TestDialLimit(t *testing.T) {
	t.Parallel()
	for stall, want := range map[time.Duration]time.Duration{callLimit: dialLimit, stallLimit: stallLimit} {
		d := newDialer("tcp", stall)
		d.leave()
		if d.limit != want {
			t.Errorf("where an answer may take %v a connection may take %v; want %v", stall, d.limit, want)
		}
	}
	w := servertest.NewWire(t, sharedRedis().Addr())
	w.Set(wire.Trouble{Hold: true}, nil)
	d := newDialer("tcp", 50*time.Millisecond)
	defer d.leave()
	_, err := d.dial(t.Context(), w.Addr(), &net.Dialer{}, nil)
	// On a busy machine the limit can also end the connecting.
	if err == nil || !strings.Contains(err.Error(), "has not answered for 50ms") && !strings.Contains(err.Error(), "i/o timeout") {
		t.Errorf("it ended with %v", err)
	}
}

// TestCloseEndsEveryConnection: closing the store also ends a connection that the client
// has lost sight of.
func TestCloseEndsEveryConnection(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), nil)
	conn, err := s.own.dial(t.Context(), sharedRedis().Addr(), &net.Dialer{}, nil)
	testkit.Must(t, err)
	testkit.Must(t, conn.SetReadDeadline(time.Now().Add(testkit.Limit)))
	testkit.Must(t, s.Close())
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v, want net.ErrClosed", err)
	}
}

// TestSubscriptionToAServerThatHangs: while the connection for wake-ups is being made, all other
// calls go on.
func TestSubscriptionToAServerThatHangs(t *testing.T) {
	t.Parallel()
	var hangs atomic.Bool
	dialled, mended := make(chan struct{}, 1), make(chan struct{})
	defer close(mended)
	s := overClient(t, rueidis.ClientOption{
		InitAddress: []string{sharedRedis().Addr()}, DisableCache: true, PipelineMultiplex: -1,
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if hangs.Load() {
				dialled <- struct{}{}
				<-mended
			}
			return d.DialContext(ctx, "tcp", addr)
		},
	})
	mustGrant(t, s, lock("key"))
	hangs.Store(true)
	mustWait(t, s, lock("key", queued))
	testkit.Await(t, "the connection for wake-ups", dialled)
	answered := make(chan error, 1)
	go func() {
		_, err := claim(t, s, lock("other"))
		answered <- err
	}()
	testkit.Check(t, testkit.Await(t, "the answer to another claim", answered))
}
