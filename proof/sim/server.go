package sim

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"slices"
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

// errReset is the error of a call whose connection broke.
var errReset = errors.New("sim: the connection was reset")

// link is a process's connection to the store.
type link struct {
	session *session
	world   *world

	mu    sync.Mutex
	known map[store.Token]uint64 // what the process has claimed with, numbered
}

// newLink returns the connection of a session.
func newLink(l *session) dibs.Store {
	return &link{session: l, world: l.process.world, known: map[store.Token]uint64{}}
}

// Batching implements store.Batcher, as a store on a server or one in memory does.
func (k *link) Batching() store.Batching { return store.Batching{Direct: k.world.plan.direct} }

// Claim implements dibs.Store.
func (k *link) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	claims = slices.Clone(claims)
	k.mu.Lock()
	for _, c := range claims {
		if _, ok := k.known[c.Token]; !ok {
			k.known[c.Token] = uint64(len(k.known) + 1)
		}
	}
	k.mu.Unlock()
	return exchange(ctx, k, 1, claims, answers, k.world.store.Claim, history.OfClaim)
}

// Renew implements dibs.Store.
func (k *link) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	renewals = slices.Clone(renewals)
	for i := range renewals {
		renewals[i].Progress = slices.Clone(renewals[i].Progress)
	}
	return exchange(ctx, k, 2, renewals, errs, k.world.store.Renew, history.OfRenewal)
}

// Settle implements dibs.Store.
func (k *link) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	settlements = slices.Clone(settlements)
	for i := range settlements {
		settlements[i].Data = slices.Clone(settlements[i].Data)
	}
	return exchange(ctx, k, 3, settlements, errs, k.world.store.Settle, history.OfSettlement)
}

// Notify implements store.Notifier.
func (k *link) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	return k.world.store.(store.Notifier).Notify(func(t store.Token, a store.Answer) { k.push(t, func() { wake(t, a) }) })
}

// push delivers a wake-up or a pushed grant, if the token is this process's and the message is
// not lost.
func (k *link) push(t store.Token, word func()) {
	k.mu.Lock()
	number, known := k.known[t]
	k.mu.Unlock()
	if !known {
		return
	}
	trip := k.trip(4, number)
	k.world.flights.Go(func() {
		time.Sleep(trip.back)
		if _, dropAnswers := k.session.process.cut(); dropAnswers || trip.backLost || !k.session.gate(trip.out%time.Microsecond) {
			return
		}
		word()
	})
}

// trip is the fate of one message and its answer.
type trip struct {
	out, back         time.Duration
	outLost, backLost bool
	reset             bool // and the caller gets the error at once
	twice             bool
	again             time.Duration // after which it arrives once more
}

// trip draws the fate of an exchange from what it is and when it is made.
func (k *link) trip(verb, n uint64) trip {
	w, p := k.world, k.session.process
	r := w.plan.among(2, uint64(p.number), verb, uint64(w.now()), n)
	t := trip{out: 20*time.Microsecond + rand64(r, time.Millisecond), back: 20*time.Microsecond + rand64(r, time.Millisecond)}
	slow, lost, reset, twice := r.IntN(1000), r.IntN(1000), r.IntN(1000), r.IntN(1000)
	if w.healed() {
		// Nothing overtakes, as on one connection: what is undone is there by then.
		t.out, t.back = 300*time.Microsecond, 300*time.Microsecond
		return t
	}
	if slow < w.plan.slow {
		k.delay(r, &t)
	}
	if lost < w.plan.lost {
		t.outLost, t.backLost = r.IntN(2) == 0, r.IntN(2) == 0
	}
	if reset < w.plan.reset {
		t.reset = true
		t.outLost = r.IntN(2) == 0
		t.backLost = true
	}
	if twice < w.plan.twice {
		t.twice, t.again = true, rand64(r, w.plan.slowest)
	}
	return t
}

func (k *link) delay(r *rand.Rand, t *trip) {
	d := rand64(r, k.world.plan.slowest)
	if r.IntN(2) == 0 {
		t.out += d
	} else {
		t.back += d
	}
}

// exchange sends a request across the network, and waits for its answer until ctx ends. The
// request may arrive after that.
func exchange[Q, A any](ctx context.Context, k *link, verb uint64, qs []Q, as []A, call func(context.Context, []Q, []A) error, of func(*Q) history.Event) error {
	if k.session.isDead() {
		return errReset
	}
	w, p := k.world, k.session.process
	trip := k.trip(verb, uint64(len(qs)))
	answers := make([]A, len(qs))
	arrived := make(chan error, 1)
	w.flights.Go(func() {
		if !k.session.gate(trip.out % time.Microsecond) {
			return
		}
		if ctx.Err() != nil && trip.out%2 == 0 {
			return // it was given up before it left
		}
		dropRequests, _ := p.cut()
		if trip.outLost || dropRequests {
			w.recording.fault("lost request", p.number)
			if trip.reset {
				arrived <- errReset
			}
			return
		}
		if trip.out > 5*time.Millisecond || trip.back > 5*time.Millisecond {
			w.recording.fault("delay", p.number)
		}
		time.Sleep(trip.out)
		if w.healed() && ctx.Err() != nil {
			return // what healed the network has ended its connection
		}
		err := call(context.Background(), qs, answers)
		if trip.twice && err == nil && w.now()+trip.again < w.plan.faulty {
			again(k, trip, qs, call, of)
		}
		time.Sleep(trip.back)
		_, dropAnswers := p.cut()
		switch {
		case !k.session.gate(trip.out % time.Microsecond):
		case trip.reset:
			w.recording.fault("lost answer", p.number)
			arrived <- errReset
		case trip.backLost || dropAnswers:
			w.recording.fault("lost answer", p.number)
		default:
			arrived <- err
		}
	})
	select {
	case err := <-arrived:
		if err == nil {
			copy(as, answers)
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// again delivers a request once more. Its answer is lost.
func again[Q, A any](k *link, trip trip, qs []Q, call func(context.Context, []Q, []A) error, of func(*Q) history.Event) {
	k.world.recording.fault("sent twice", k.session.process.number)
	ghosts := make([]history.Event, len(qs))
	for i := range qs {
		ghosts[i] = of(&qs[i])
	}
	_ = k.session.writer.Call(ghosts) // memory takes everything
	k.world.flights.Go(func() {
		time.Sleep(trip.again)
		_ = call(context.Background(), qs, make([]A, len(qs)))
	})
}
