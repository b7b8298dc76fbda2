package sim

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// errDown is the error of a store that is away.
var errDown = errors.New("sim: the store is down")

// server is the store at the other end of the network. It can be away for a while, and come back
// with its data or without. If the plan says so, it pushes grants, as stores on servers do,
// although memstore only wakes waiters.
type server struct {
	world *world

	mu      sync.Mutex
	store   *memstore.Store
	down    bool
	stop    func() // ends the words of the store
	number  int
	wakers  map[int]func(store.Token, store.Answer)
	waiting map[store.Token]store.Claim
	highest map[dibs.Key]uint64 // fence
}

var (
	_ store.Notifier  = (*server)(nil)
	_ store.Inspector = (*server)(nil)
)

func newServer(w *world) *server {
	s := &server{
		world: w, wakers: map[int]func(store.Token, store.Answer){},
		waiting: map[store.Token]store.Claim{}, highest: map[dibs.Key]uint64{},
	}
	s.open()
	return s
}

// open replaces the store by an empty one.
func (s *server) open() {
	under, err := memstore.New(nil)
	if err != nil {
		panic(err)
	}
	s.store = under
	// The store calls while it is called, and so under the server's lock.
	s.stop = under.Notify(func(t store.Token, _ store.Answer) { s.world.flights.Go(func() { s.turn(under, t) }) })
}

// silence ends the wake-ups of the store.
func (s *server) silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

// close forgets all that the store has.
func (s *server) close() {
	if err := s.store.Close(); err != nil {
		panic(err) // it has none to return
	}
}

// fate strikes the store while there are faults.
func (s *server) fate() {
	w := s.world
	r := w.plan.among(3)
	for {
		time.Sleep(time.Second + rand64(r, 3*time.Second))
		if w.now() > w.plan.faulty+time.Second {
			return
		}
		n := r.IntN(100)
		if n >= w.plan.restarts+w.plan.forgets {
			continue
		}
		forgets := n < w.plan.forgets
		since := w.now()
		s.mu.Lock()
		s.down = true
		if forgets {
			s.stop()
			s.close()
			s.open()
		}
		s.mu.Unlock()
		time.Sleep(time.Millisecond + rand64(r, 2*w.plan.ttl))
		s.mu.Lock()
		s.down = false
		s.mu.Unlock()
		name := "restart"
		if forgets {
			name = Forgets
		}
		w.recording.note(history.Event{Kind: history.Fault, Name: name, Times: 1, Call: since})
	}
}

// Claim implements dibs.Store.
func (s *server) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return errDown
	}
	if err := s.store.Claim(ctx, claims, answers); err != nil {
		return err
	}
	if !s.world.plan.pushes {
		return nil
	}
	for i, c := range claims {
		switch a := &answers[i]; a.State {
		case store.Granted:
			s.highest[c.Key] = max(s.highest[c.Key], a.Fence)
		case store.Held:
			a.Fence = s.highest[c.Key]
			if c.Mode == store.Queue && a.Queued {
				s.waiting[c.Token] = c
			}
		}
	}
	return nil
}

// Renew implements dibs.Store.
func (s *server) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return errDown
	}
	return s.store.Renew(ctx, renewals, errs)
}

// Settle implements dibs.Store.
func (s *server) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return errDown
	}
	for _, x := range settlements {
		delete(s.waiting, x.Token)
	}
	return s.store.Settle(ctx, settlements, errs)
}

// Notify implements store.Notifier.
func (s *server) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number++
	n := s.number
	s.wakers[n] = wake
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.wakers, n)
	}
}

// turn wakes a waiter, or pushes its grant.
func (s *server) turn(under *memstore.Store, t store.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store != under || s.down {
		return
	}
	var word store.Answer
	if c, ok := s.waiting[t]; ok && s.plain(c) {
		word = s.grant(c)
	}
	for _, wake := range s.wakers {
		wake(t, word)
	}
}

// plain reports whether a waiter needs nothing but its grant to begin.
func (s *server) plain(c store.Claim) bool {
	if c.AtMostOnce {
		return false
	}
	for e, err := range s.store.List(context.Background(), store.Query{Namespace: &c.Key.Namespace, Name: c.Key.Name}) {
		if err != nil || e.Record != nil && c.MaxAge > 0 {
			return false
		}
		for _, a := range e.Runs {
			if a.Left <= 0 || !c.Fingerprint.IsZero() {
				return false // it was abandoned, or its holder may be doing something else
			}
		}
	}
	return true
}

// grant grants the key to the waiter in front, for PushedTTL.
func (s *server) grant(c store.Claim) store.Answer {
	c.Mode, c.PlaceTTL, c.TTL = store.Try, 0, min(c.TTL, store.PushedTTL)
	answers := make([]store.Answer, 1)
	if err := s.store.Claim(context.Background(), []store.Claim{c}, answers); err != nil || answers[0].State != store.Granted {
		return store.Answer{}
	}
	s.highest[c.Key] = max(s.highest[c.Key], answers[0].Fence)
	return answers[0]
}

// List implements store.Inspector.
func (s *server) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	return s.inside().List(ctx, q)
}

// ForceRelease implements store.Inspector.
func (s *server) ForceRelease(ctx context.Context, key dibs.Key, id string) (int, error) {
	return s.inside().ForceRelease(ctx, key, id)
}

// Forget implements store.Inspector.
func (s *server) Forget(ctx context.Context, key dibs.Key, id string) (bool, error) {
	return s.inside().Forget(ctx, key, id)
}

// Resolve implements store.Inspector.
func (s *server) Resolve(ctx context.Context, key dibs.Key, id string, data []byte, retention time.Duration) (bool, error) {
	return s.inside().Resolve(ctx, key, id, data, retention)
}

func (s *server) inside() *memstore.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store
}
