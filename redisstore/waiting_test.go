package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// beyond is how much longer than is due anybody may wait, whatever gets lost:
// half a second until a waiter asks by itself, or the turn of one that is frozen,
// and what a busy machine takes.
const beyond = 3 * dibs.Turn

// waitersOf returns how many wait for a key.
func waitersOf(t testing.TB, s *Store, k dibs.Key) int {
	t.Helper()
	n := 0
	for e, err := range s.List(t.Context(), dibs.Query{Namespace: &k.Namespace, Name: k.Name}) {
		if err != nil {
			t.Fatal(err)
		}
		n += e.Waiters
	}
	return n
}

// TestScriptsForgotten: a server forgets its scripts, as one that is restarted or
// takes over does, again and again while everybody works.
func TestScriptsForgotten(t *testing.T) {
	t.Run("Redis", func(t *testing.T) {
		server := servertest.Redis(t, nil)
		forgetScripts(t, server.URL(), []*servertest.RedisServer{server})
	})
	t.Run("Cluster", func(t *testing.T) {
		forgetScripts(t, sharedCluster().URL(), sharedCluster().Nodes()[:3])
	})
}

func forgetScripts(t *testing.T, url string, masters []*servertest.RedisServer) {
	const workers, rounds, keys = 8, 60, 3
	o := &Options{Prefix: ownPrefix()}
	var forgot atomic.Int64
	var working, forgetting sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for _, master := range masters {
		forgetting.Go(func() {
			conn, err := master.Dial()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			for ctx.Err() == nil {
				if _, err := conn.Do("SCRIPT", "FLUSH"); err != nil {
					t.Error(err)
					return
				}
				forgot.Add(1)
			}
		})
	}
	var inside [keys]int // each under its key's lock
	var longest atomic.Int64
	for range 2 {
		c := newClient(t, open(t, url, o), nil)
		for w := range workers / 2 {
			working.Go(func() {
				for round := range rounds {
					n := (w + round) % keys
					start := time.Now()
					err := c.Do(ctx, fmt.Sprint("key ", n), func(context.Context) error {
						inside[n]++
						return nil
					})
					if err != nil {
						t.Error(err)
						return
					}
					for d := time.Since(start); ; {
						if old := longest.Load(); int64(d) <= old || longest.CompareAndSwap(old, int64(d)) {
							break
						}
					}
				}
			})
		}
	}
	working.Wait()
	cancel()
	forgetting.Wait()
	total := 0
	for _, n := range inside {
		total += n
	}
	if total != workers*rounds {
		t.Errorf("%d sections were run, want %d", total, workers*rounds)
	}
	if d := time.Duration(longest.Load()); d > beyond {
		t.Errorf("one waited for %v", d)
	}
	if forgot.Load() < 50 {
		t.Errorf("the scripts were forgotten only %d times", forgot.Load())
	}
	t.Logf("%d sections, forgotten %d times, the longest wait was %v", total, forgot.Load(), time.Duration(longest.Load()))
}

// TestDeafAtRelease: the subscriptions end as the keys are released, so that the
// publishing meets them dead, dying or alive.
func TestDeafAtRelease(t *testing.T) {
	t.Run("Redis", func(t *testing.T) {
		server := servertest.Redis(t, nil)
		endSubscriptions(t, server.URL(), []*servertest.RedisServer{server})
	})
	t.Run("Cluster", func(t *testing.T) {
		endSubscriptions(t, sharedCluster().URL(), sharedCluster().Nodes()[:3])
	})
}

func endSubscriptions(t *testing.T, url string, masters []*servertest.RedisServer) {
	const rounds, keys = 6, 40
	o := &Options{Prefix: ownPrefix()}
	holders := newClient(t, open(t, url, o), &dibs.Options{Namespace: "test"})
	waiting := []*Store{open(t, url, o), open(t, url, o)}
	waiters := []*dibs.Client{
		newClient(t, waiting[0], &dibs.Options{Namespace: "test"}), newClient(t, waiting[1], &dibs.Options{Namespace: "test"}),
	}
	var worst, all time.Duration
	for round := range rounds {
		leases := make([]*dibs.Lease, keys)
		for i := range leases {
			var err error
			if leases[i], err = holders.Acquire(t.Context(), fmt.Sprint(round, " ", i), nil); err != nil {
				t.Fatal(err)
			}
		}
		released, served := make([]time.Time, keys), make([]time.Time, keys)
		var wait sync.WaitGroup
		for i := range leases {
			wait.Go(func() {
				lease, err := waiters[i%2].Acquire(t.Context(), fmt.Sprint(round, " ", i), nil)
				if err != nil {
					t.Error(err)
					return
				}
				served[i] = time.Now()
				if err := lease.Release(); err != nil && !errors.Is(err, dibs.ErrStore) {
					t.Error(err)
				}
			})
		}
		eventually(t, 20*time.Second, "all wait", func() bool {
			n := 0
			for e, err := range waiting[0].List(t.Context(), dibs.Query{}) {
				if err != nil {
					t.Fatal(err)
				}
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
		for i, lease := range leases {
			wait.Go(func() {
				released[i] = time.Now()
				// On a cluster the connection that ends may be the one of the call.
				if err := lease.Release(); err != nil && !errors.Is(err, dibs.ErrStore) {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		for i := range leases {
			d := served[i].Sub(released[i])
			worst = max(worst, d)
			all += d
		}
	}
	if worst > beyond {
		t.Errorf("a waiter was served %v after the release", worst)
	}
	t.Logf("the longest hand-over of %d took %v, the mean is %v", rounds*keys, worst, all/(rounds*keys))
}

// TestDeadWaiters: twenty who wait in front are killed, or gone without a word.
// The release that reaches them goes on to the one behind, in the same step.
func TestDeadWaiters(t *testing.T) {
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	holder := lock(waitedFor)
	mustGrant(t, s, holder)
	killed := []*process{start(t, "crowd", server.URL()), start(t, "crowd", server.URL())}
	var closed []*Store
	for range 2 {
		gone := open(t, server.URL(), nil)
		for range crowd {
			mustListen(t, gone, lock(waitedFor, queued))
		}
		closed = append(closed, gone)
	}
	eventually(t, 20*time.Second, "twenty wait and are listened for", func() bool {
		n := 0
		places, _ := server.Must("HVALS", newName(s, holder.Key, 'w')).([]any)
		for _, p := range places {
			if strings.Contains(p.(string), "dibs:wake:") {
				n++
			}
		}
		return n == 4*crowd
	})
	alive := lock(waitedFor, queued)
	if a := mustListen(t, s, alive); a.Ahead != 4*crowd {
		t.Fatalf("%d are ahead, want %d", a.Ahead, 4*crowd)
	}
	for _, p := range killed {
		p.kill()
	}
	for _, gone := range closed {
		if err := gone.Close(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 10*time.Second, "the server has noticed", func() bool {
		channels, _ := server.Must("PUBSUB", "CHANNELS", "dibs:wake:*").([]any)
		return len(channels) == 1
	})

	mustSettle(t, s, holder, dibs.Release)
	for e, err := range s.List(t.Context(), dibs.Query{Name: waitedFor}) {
		if err != nil {
			t.Fatal(err)
		}
		if len(e.Attempts) != 1 || e.Attempts[0].ID != alive.Token.ID() || e.Waiters != 0 {
			t.Errorf("after the release there is %+v; want the lease of %s", e, alive.Token.ID())
		}
	}
	mustGrant(t, s, alive)
	mustSettle(t, s, alive, dibs.Release)
}

// TestFrozenWaiter: a waiter stops as it is granted the key. It loses its turn
// and nobody else more than that; when it goes on it knows.
func TestFrozenWaiter(t *testing.T) {
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	c := newClient(t, s, &dibs.Options{Namespace: "test"})
	held, err := c.Acquire(t.Context(), waitedFor, nil)
	if err != nil {
		t.Fatal(err)
	}
	frozen := start(t, "wait", server.URL())
	eventually(t, 20*time.Second, "the child waits", func() bool { return waitersOf(t, s, held.Key()) == 1 })

	// Behind the child.
	type grant struct {
		lease *dibs.Lease
		at    time.Time
	}
	behind := make(chan grant)
	go func() {
		lease, err := c.Acquire(t.Context(), waitedFor, nil)
		if err != nil {
			t.Error(err)
		}
		behind <- grant{lease, time.Now()}
	}()
	eventually(t, 10*time.Second, "another waits", func() bool { return waitersOf(t, s, held.Key()) == 2 })

	servertest.Freeze(t, frozen.cmd.Process)
	// What it asked as it was stopped is answered before what is asked now.
	if n := waitersOf(t, s, held.Key()); n != 2 {
		t.Fatalf("%d wait, want the child and the one behind it", n)
	}
	start := time.Now()
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	next := <-behind
	if next.lease == nil {
		return
	}
	if d := next.at.Sub(start); d < dibs.Turn || d > dibs.Turn+beyond {
		t.Errorf("the next was served after %v, want a turn of %v and at most %v more", d, dibs.Turn, beyond)
	}

	frozen.signal(syscall.SIGCONT)
	eventually(t, 10*time.Second, "the child is in the queue again", func() bool { return waitersOf(t, s, held.Key()) == 1 })
	select {
	case line := <-frozen.lines:
		t.Errorf("the child says %q while another holds the key", line)
	default:
	}
	released := time.Now()
	if err := next.lease.Release(); err != nil {
		t.Fatal(err)
	}
	var fence uint64
	var attempt int
	if _, err := fmt.Sscanf(frozen.says(10*time.Second), "granted %d %d", &fence, &attempt); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(released); d > beyond {
		t.Errorf("the child was served %v after the release", d)
	}
	if fence <= next.lease.Fence() {
		t.Errorf("the child has fence %d, and the one before it %d", fence, next.lease.Fence())
	}
	if attempt != 1 {
		t.Errorf("the child is told of %d abandoned leases; the one before it was settled", attempt-1)
	}
	frozen.end()
}

// TestLostReplies: the server does what it is asked, and the connection ends
// before it says so.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, w *servertest.Wire, c, other *dibs.Client, waits func()){
		"Claim": func(t *testing.T, w *servertest.Wire, c, _ *dibs.Client, _ func()) {
			lost := w.LoseReplyTo("test key:s")
			lease := acquireSoon(t, c)
			<-lost
			if lease.Attempt() != 1 {
				t.Errorf("it is attempt %d, want 1", lease.Attempt())
			}
			if err := lease.Release(); err != nil {
				t.Error(err)
			}
		},
		"Place": func(t *testing.T, w *servertest.Wire, c, other *dibs.Client, _ func()) {
			held := acquireSoon(t, other)
			lost := w.LoseReplyTo("test key:s")
			waiting := acquireLater(t, c)
			<-lost
			servedSoon(t, held, waiting)
		},
		"Turn": func(t *testing.T, w *servertest.Wire, c, other *dibs.Client, waits func()) {
			held := acquireSoon(t, other)
			waiting := acquireLater(t, c)
			waits()
			lost := w.LoseReplyTo("test key:s") // of its next question, which may be granted
			servedSoon(t, held, waiting)
			w.Mend()
			select {
			case <-lost: // it asked; otherwise the grant was told
			default:
			}
		},
		"Release": func(t *testing.T, w *servertest.Wire, c, other *dibs.Client, waits func()) {
			held := acquireSoon(t, c)
			waiting := acquireLater(t, other)
			waits()
			lost := w.LoseReplyTo("test key:s")
			servedSoon(t, held, waiting)
			<-lost
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, nil)
			w := servertest.NewWire(t, server.Addr())
			s, other := open(t, server.URLAt(w.Addr()), nil), open(t, server.URL(), nil)
			o := &dibs.Options{Namespace: "test"}
			lose(t, w, newClient(t, s, o), newClient(t, other, o), func() {
				eventually(t, 10*time.Second, "it waits", func() bool { return waitersOf(t, other, key("key")) == 1 })
			})
			eventually(t, 5*time.Second, "nothing is left", func() bool { return len(leftover(t, server, "dibs")) == 0 })
		})
	}
}

// acquireSoon takes the key, which is free.
func acquireSoon(t *testing.T, c *dibs.Client) *dibs.Lease {
	t.Helper()
	start := time.Now()
	lease, err := c.Acquire(t.Context(), "key", nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > beyond {
		t.Errorf("the claim of a free key took %v", d)
	}
	return lease
}

// acquireLater waits for the key, releases it, and says when it was served.
func acquireLater(t *testing.T, c *dibs.Client) <-chan time.Time {
	served := make(chan time.Time, 1)
	go func() {
		defer close(served)
		lease, err := c.Acquire(t.Context(), "key", nil)
		if err != nil {
			t.Error(err)
			return
		}
		served <- time.Now()
		if err := lease.Release(); err != nil && !errors.Is(err, dibs.ErrStore) {
			t.Error(err) // its reply may be the one that is lost
		}
	}()
	return served
}

// servedSoon releases the key for one that waits.
func servedSoon(t *testing.T, held *dibs.Lease, waiting <-chan time.Time) {
	t.Helper()
	start := time.Now()
	if err := held.Release(); err != nil && !errors.Is(err, dibs.ErrStore) {
		t.Error(err)
	}
	if d := (<-waiting).Sub(start); d > beyond {
		t.Errorf("the waiter was served %v after the release", d)
	}
	for range waiting { // until it has released
	}
}
