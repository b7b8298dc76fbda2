package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestCancelledClaims: callers give up before, while and after their claim is
// sent, on a key that is free and on one that is held. The server keeps nothing
// of them, and a key that was held is free when it is released.
func TestCancelledClaims(t *testing.T) {
	for name, where := range map[string]func(t *testing.T) (url string, servers []*servertest.RedisServer){
		"Redis": func(t *testing.T) (string, []*servertest.RedisServer) {
			server := servertest.Redis(t, nil)
			w := servertest.NewWire(t, server.Addr())
			w.Delay(2 * time.Millisecond) // there is a while to give up in
			return server.URLAt(w.Addr()), []*servertest.RedisServer{server}
		},
		"Cluster": func(t *testing.T) (string, []*servertest.RedisServer) {
			return sharedCluster().URL(), sharedCluster().Nodes()[:3]
		},
	} {
		t.Run(name, func(t *testing.T) {
			url, servers := where(t)
			const callers, rounds = 16, 30
			o := &Options{Prefix: ownPrefix()}
			s := open(t, url, o)
			busy := make([]dibs.Claim, 4)
			for i := range busy {
				busy[i] = lock(fmt.Sprint("busy ", i))
				mustGrant(t, s, busy[i])
			}
			c := newClient(t, open(t, url, o), &dibs.Options{Namespace: "test"})
			var granted, gaveUp atomic.Int64
			var calling sync.WaitGroup
			for caller := range callers {
				calling.Go(func() {
					for round := range rounds {
						k := fmt.Sprint("free ", caller, " ", round)
						if caller%2 == 0 {
							k = fmt.Sprint("busy ", caller/2%len(busy))
						}
						ctx, cancel := context.WithCancel(t.Context())
						// A busy machine needs longer to grant anything.
						most := []time.Duration{10 * time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond}[round%3]
						late := time.AfterFunc(rand.N(most), cancel)
						if round == 0 {
							cancel() // before
						}
						lease, err := c.Acquire(ctx, k, nil)
						switch {
						case err == nil:
							granted.Add(1)
							if err := lease.Release(); err != nil && !errors.Is(err, dibs.ErrLost) {
								t.Error(err)
							}
						case errors.Is(err, context.Canceled):
							gaveUp.Add(1)
						default:
							t.Error(err)
						}
						late.Stop()
						cancel()
					}
				})
			}
			calling.Wait()
			if granted.Load() < callers/2 || gaveUp.Load() < callers/2 {
				t.Errorf("%d were granted and %d gave up; there should be some of both", granted.Load(), gaveUp.Load())
			}
			left := func() (all []string) {
				for _, server := range servers {
					all = append(all, leftover(t, server, o.Prefix)...)
				}
				return all
			}
			eventually(t, 5*time.Second, "only the held keys are left, and nobody waits", func() bool {
				names := 0
				for e, err := range s.List(t.Context(), dibs.Query{}) {
					if err != nil {
						t.Fatal(err)
					}
					if e.Waiters > 0 || e.Condition != dibs.ConditionHeld {
						return false
					}
					names++
				}
				return names == len(busy)
			})
			for _, c := range busy {
				mustSettle(t, s, c, dibs.Release)
			}
			eventually(t, 5*time.Second, "nothing is left", func() bool { return len(left()) == 0 })
		})
	}
}

// TestCancelledCall: a call whose context ends while the server has it is over
// at once. What it may have got is given back by whoever made it.
func TestCancelledCall(t *testing.T) {
	server := servertest.Redis(t, nil)
	w := servertest.NewWire(t, server.Addr())
	s := open(t, server.URLAt(w.Addr()), nil)
	held, waits, free := lock("held"), lock("held", queued), lock("free")
	mustGrant(t, s, held)
	mustBeConnected(t, server, s, lock("held", queued))
	w.DropReplies()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Claim(ctx, []dibs.Claim{waits, free}, make([]dibs.Answer, 2)) }()
	eventually(t, 10*time.Second, "the server has it", func() bool {
		return server.Must("EXISTS", newName(s, free.Key, 's')) == int64(1)
	})
	start := time.Now()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v", err)
	}
	if d := time.Since(start); d > callLimit/2 {
		t.Errorf("the call ended %v after its context", d)
	}
	w.Cut() // the connection that lost its replies
	w.Mend()
	for _, c := range []dibs.Claim{free, waits} {
		eventually(t, 10*time.Second, "it is undone over another connection", func() bool {
			_, err := settle(t, s, c, dibs.Undo)
			return err == nil
		})
	}
	if server.Must("EXISTS", newName(s, free.Key, 's')) != int64(0) {
		t.Error("the lease of the cancelled call is still there")
	}
	if n := waitersOf(t, open(t, server.URL(), nil), held.Key); n != 1 {
		t.Errorf("%d wait; the place of the cancelled call should be gone", n)
	}
}
