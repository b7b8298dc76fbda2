package serve

import (
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/httpstore"
	"github.com/dibs-go/dibs/stores/memstore"
)

// points are where a server can be killed under a call.
var points = []struct {
	name string
	done bool // the server carried the call out
	cut  func(w *wire.Wire, r *rig, call func())
}{
	{"before it", false, func(_ *wire.Wire, r *rig, call func()) {
		r.kill()
		call()
	}},
	{"before it arrives", false, func(w *wire.Wire, r *rig, call func()) {
		w.Set(wire.Trouble{Lose: [2]bool{wire.Requests: true}}, nil)
		done := make(chan struct{})
		go func() { defer close(done); call() }()
		testkit.Eventually(r.t, "the request is lost", func() bool { return w.Counts().LostRequests > 0 })
		w.Cut()
		r.kill()
		<-done
	}},
	{"before its answer arrives", true, func(w *wire.Wire, r *rig, call func()) {
		w.Set(wire.Trouble{LoseReply: 1}, nil)
		call()
		if w.Counts().LostReplies == 0 {
			r.t.Error("no answer was lost")
		}
		w.Cut()
		r.kill()
	}},
}

// scene is a store in memory, a server that will be killed, behind a wire, and another server.
type scene struct {
	*testing.T
	under *memstore.Store
	over  *httpstore.Store
}

const hour = time.Hour

func (s *scene) claimOf(key string, token store.Token, mode store.Mode) store.Claim {
	return store.Claim{Key: dibs.Key{Name: key}, Token: token, Mode: mode, TTL: hour, PlaceTTL: hour, Permits: 1, Weight: 1}
}

// claim claims in the store, or over the servers.
func (s *scene) claim(at dibs.Store, key string, token store.Token, mode store.Mode) store.Answer {
	s.Helper()
	var a [1]store.Answer
	if err := at.Claim(s.Context(), []store.Claim{s.claimOf(key, token, mode)}, a[:]); err != nil {
		s.Fatal(err)
	}
	return a[0]
}

func (s *scene) settle(token store.Token, o store.Outcome) error {
	s.Helper()
	x := store.Settlement{Key: dibs.Key{Name: "k"}, Token: token, Outcome: o}
	if o == store.Keep {
		x.Data, x.Retention = []byte("x"), hour
	}
	var errs [1]error
	if err := s.over.Settle(s.Context(), []store.Settlement{x}, errs[:]); err != nil {
		s.Fatal(err)
	}
	return errs[0]
}

// entry returns what the store has of the key.
func (s *scene) entry() (e store.Entry) {
	s.Helper()
	for got, err := range s.under.List(s.Context(), store.Query{Name: "k"}) {
		if e = got; err != nil {
			s.Fatal(err)
		}
	}
	return e
}

// TestAServerIsKilledAtEveryPoint: a call under which one of two servers is killed, at every point,
// is carried out once. What it returns is true.
func TestAServerIsKilledAtEveryPoint(t *testing.T) {
	mine, other := store.Token{1}, store.Token{2}
	hold := func(s *scene) { s.claim(s.under, "k", mine, store.Try) }
	ended := func(s *scene, err error, done bool) {
		s.Helper()
		if unknown := errtype.Of(err) == errtype.Unreachable && !errors.Is(err, dibs.ErrLost); done && !unknown || !done && err != nil {
			s.Errorf("it is answered %v", err)
		}
	}
	for name, step := range map[string]struct {
		before func(*scene)
		call   func(s *scene, done bool)
	}{
		"claim": {func(*scene) {}, func(s *scene, _ bool) {
			a := s.claim(s.over, "k", mine, store.Try)
			if e := s.entry(); a.State != store.Granted || a.Attempt != 1 || len(e.Runs) != 1 || e.Runs[0].Fence != a.Fence {
				s.Errorf("it is answered %+v; the store has %+v", a, e)
			}
		}},
		"wait": {hold, func(s *scene, _ bool) {
			a := s.claim(s.over, "k", other, store.Queue)
			if e := s.entry(); a.State != store.Held || !a.Queued || a.Ahead != 0 || e.Waiters != 1 {
				s.Errorf("it is answered %+v; the store has %+v", a, e)
			}
		}},
		"ask again": {func(s *scene) { hold(s); s.claim(s.under, "k", other, store.Queue) }, func(s *scene, _ bool) {
			a := s.claim(s.over, "k", other, store.Queue)
			if e := s.entry(); a.State != store.Held || !a.Queued || e.Waiters != 1 {
				s.Errorf("it is answered %+v; the store has %+v", a, e)
			}
		}},
		"renew": {hold, func(s *scene, _ bool) {
			var errs [1]error
			err := s.over.Renew(s.Context(), []store.Renewal{{Key: dibs.Key{Name: "k"}, Token: mine, TTL: 2 * hour}}, errs[:])
			if e := s.entry(); err != nil || errs[0] != nil || len(e.Runs) != 1 || e.Runs[0].Left <= hour {
				s.Errorf("it is answered %v, %v; the store has %+v", err, errs[0], e)
			}
		}},
		"release": {hold, func(s *scene, done bool) {
			ended(s, s.settle(mine, store.Release), done)
			if a := s.claim(s.under, "k", other, store.Try); a.State != store.Granted || a.Attempt != 1 {
				s.Errorf("the next claim is answered %+v", a)
			}
		}},
		"undo": {hold, func(s *scene, done bool) {
			ended(s, s.settle(mine, store.Undo), done)
			if a := s.claim(s.under, "k", other, store.Try); a.State != store.Granted || a.Attempt != 1 {
				s.Errorf("the next claim is answered %+v", a)
			}
		}},
		"abandon": {hold, func(s *scene, done bool) {
			ended(s, s.settle(mine, store.Abandon), done)
			if a := s.claim(s.under, "k", other, store.Try); a.State != store.Granted || a.Attempt != 2 {
				s.Errorf("the next claim is answered %+v", a)
			}
		}},
		"keep": {hold, func(s *scene, _ bool) {
			if err := s.settle(mine, store.Keep); err != nil {
				s.Error(err)
			}
			if e := s.entry(); e.Condition != store.ConditionDone || e.Record == nil {
				s.Errorf("the store has %+v", e)
			}
		}},
		"force": {hold, func(s *scene, done bool) {
			key := dibs.Key{Name: "k"}
			n, err := s.over.ForceRelease(s.Context(), key, "")
			if err != nil { // it is not known: the operator looks, and asks again
				if n, err = s.over.ForceRelease(s.Context(), key, ""); done == (n == 1) || err != nil {
					s.Errorf("the second order is answered %d, %v", n, err)
				}
			} else if n != 1 {
				s.Errorf("it is answered %d", n)
			}
			if e := s.entry(); len(e.Runs) != 0 {
				s.Errorf("the store has %+v", e)
			}
		}},
	} {
		for _, point := range points {
			for _, used := range []bool{false, true} {
				t.Run(name+", killed "+point.name+map[bool]string{true: ", on a connection that is in use"}[used], func(t *testing.T) {
					s := &scene{T: t, under: inMemory(t)}
					killed, kept := start(t, s.under, nil), start(t, s.under, nil)
					w, err := wire.Open(killed.Listener.Addr().String())
					testkit.Must(t, err)
					t.Cleanup(func() { w.Close() })
					if s.over, err = httpstore.Open("http://"+w.Addr()+","+kept.Listener.Addr().String(), nil); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { s.over.Close() })
					if used {
						s.claim(s.over, "another key", store.Token{3}, store.Look)
					}
					step.before(s)
					point.cut(w, killed, func() { step.call(s, point.done) })
				})
			}
		}
	}
}
