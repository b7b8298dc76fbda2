package storetest

import (
	"context"
	"hash/fnv"
	"iter"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest/internal/model"
)

// modelHarness tests the model with one bug, or none.
func modelHarness(bug model.Bug, virtual bool) *Harness {
	return &Harness{
		Virtual: virtual,
		Crowd:   1000,
		New: func(_ testing.TB, turn time.Duration) *Subject {
			b := model.New(bug, turn)
			return &Subject{
				Open:       func() store.Store { return b.Open() },
				OpenSkewed: func(time.Duration) store.Store { return b.Open() },
				Restart:    b.Restart,
				Wipe:       b.Wipe,
			}
		},
	}
}

// kinds are the two kinds of correct stores.
var kinds = map[string]model.Bug{"Tells": model.None, "Wakes": model.Wakes}

// The simplest correct store passes, in virtual time and, as a store over a
// network would have to, in real time.
func TestModel(t *testing.T) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) { Run(t, modelHarness(kind, true)) })
		t.Run(name+"InRealTime", func(t *testing.T) {
			t.Parallel() // it mostly waits
			Run(t, modelHarness(kind, false))
		})
	}
}

// A correct store passes however slow the machine is: each call, and each wake-up, may
// pause for seconds on its way there and back. The properties keep to the rules
// for real time, in a bubble.
func TestSlowMachine(t *testing.T) {
	t.Parallel()
	for _, p := range Properties() {
		if p.Heavy {
			continue // they poll, and a crowd of slow calls takes longer than the limit
		}
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) {
				synctest.Test(t, func(t *testing.T) {
					h, err := slowHarness([]model.Bug{model.None, model.Wakes}[seed%2], p.Name, seed).withDefaults()
					testkit.Must(t, err)
					if f, _ := h.missing(p); f != "" {
						return
					}
					if r := try(t, h, p); r.Failed() {
						t.Errorf("seed %d: %q", seed, r.lines())
					}
				})
			}
		})
	}
}

// slowHarness is modelHarness on a machine that pauses now and then.
func slowHarness(kind model.Bug, name string, seed uint64) *Harness {
	h := modelHarness(kind, false)
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name))
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, sum.Sum64()))
	stall := func() {
		mu.Lock()
		d := time.Duration(0)
		switch n := rnd.IntN(10); {
		case n == 0:
			d = time.Duration(rnd.Int64N(int64(5 * time.Second)))
		case n < 4:
			d = time.Duration(rnd.Int64N(int64(300 * time.Millisecond)))
		}
		mu.Unlock()
		time.Sleep(d)
	}
	made := h.New
	h.New = func(t testing.TB, turn time.Duration) *Subject {
		b := made(t, turn)
		open, skewed := b.Open, b.OpenSkewed
		b.Open = func() store.Store { return &slowStore{open().(*model.Store), stall} }
		b.OpenSkewed = func(d time.Duration) store.Store { return &slowStore{skewed(d).(*model.Store), stall} }
		return b
	}
	return h
}

// slowStore stalls before and after each call.
type slowStore struct {
	*model.Store
	stall func()
}

func (s *slowStore) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	s.stall()
	defer s.stall()
	return s.Store.Claim(ctx, claims, answers)
}

func (s *slowStore) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	s.stall()
	defer s.stall()
	return s.Store.Renew(ctx, renewals, errs)
}

func (s *slowStore) Settle(ctx context.Context, xs []store.Settlement, errs []error) error {
	s.stall()
	defer s.stall()
	return s.Store.Settle(ctx, xs, errs)
}

func (s *slowStore) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	s.stall()
	defer s.stall()
	return s.Store.List(ctx, q)
}

func (s *slowStore) ForceRelease(ctx context.Context, k store.Key, id string) (int, error) {
	s.stall()
	defer s.stall()
	return s.Store.ForceRelease(ctx, k, id)
}

func (s *slowStore) Notify(f func(store.Token, store.Answer)) func() {
	later, stopped := s.later()
	stop := s.Store.Notify(func(token store.Token, a store.Answer) { later(func() { f(token, a) }) })
	return func() { stop(); stopped() }
}

// later returns what calls a function after a stall, until it is stopped.
func (s *slowStore) later() (later func(func()), stopped func()) {
	over := make(chan struct{})
	var running sync.WaitGroup
	return func(f func()) {
			running.Go(func() {
				s.stall()
				select {
				case <-over:
				default:
					f()
				}
			})
		}, func() {
			close(over)
			running.Wait()
		}
}
