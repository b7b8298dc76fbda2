package survey

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/store"
)

const (
	// MetricsAge is how old a report can be that metrics are taken from.
	MetricsAge = 15 * time.Second
	// Long is how long a key is held before a report lists it without a waiter.
	Long = 5 * time.Minute
	// listed is how many keys of each kind a report lists, of all namespaces and of each.
	listed = 200
	// near is how long ago the look before can be, so that a waiter that only the later one has found has
	// begun to wait between the two.
	near = 2 * MetricsAge
	// limit is how long one look at the store can take.
	limit = 8 * time.Second
	// patience is how long a caller waits for a look. Prometheus gives a scrape ten seconds, or less.
	patience = time.Second
	// share is which part of the time looks take at most: one in share.
	share = 50
)

// ErrCounting is returned until the first look at the store is over.
var ErrCounting = errors.New("the store is being read for the first time")

// live are the conditions of the keys that are looked at.
var live = []store.Condition{store.ConditionHeld, store.ConditionWaiting, store.ConditionUnknown}

// Survey looks at the live keys of a store. It is safe for concurrent use.
type Survey struct {
	in        store.Inspector
	namespace *string

	mu      sync.Mutex
	last    *Report
	err     error
	next    time.Time     // not before: the last look has taken its share
	failed  int           // how many looks have failed since one did not
	at      time.Time     // when the last look ended
	looking chan struct{} // closed when the look that continues is over; nil: none continues

	// Of the goroutine that looks:
	seen   map[waiter]sight
	before time.Time // when the last look began that did not fail
}

// sight is when a waiter was seen for the first time.
type sight struct {
	at    time.Time
	least bool // it may have waited for long before
}

// waiter is a claim that waits.
type waiter struct {
	key   store.Key
	token store.Token
}

// Report is what a look at a store has found.
type Report struct {
	At         time.Time         // when it was complete
	Took       time.Duration     // to read it
	Namespaces map[string]Counts // those with a live key, and the survey's own
	Waits      []Key             // with waiters, or held for long: the oldest wait first
	Unknown    []Key             // the oldest first
}

// Of returns the counts of a namespace, and the first 200 of its keys in Waits and in Unknown. nil is all
// namespaces.
func (r *Report) Of(namespace *string) (c Counts, waits, unknown []Key) {
	for name, of := range r.Namespaces {
		if namespace == nil || *namespace == name {
			c.Long, c.Waiters, c.Unknown = c.Long+of.Long, c.Waiters+of.Waiters, c.Unknown+of.Unknown
			c.OldestWait = max(c.OldestWait, of.OldestWait)
		}
	}
	first := func(keys []Key) (some []Key) {
		for _, k := range keys {
			if len(some) < listed && (namespace == nil || *namespace == k.Key.Namespace) {
				some = append(some, k)
			}
		}
		return some
	}
	return c, first(r.Waits), first(r.Unknown)
}

// Counts are the counts of a namespace.
type Counts struct {
	Long       int // keys held for long
	Waiters    int // claims that wait
	Unknown    int // keys with an unknown outcome
	OldestWait time.Duration
}

// Key is a live key.
type Key struct {
	store.Entry
	// Waited is how long the oldest waiter has been seen to wait. A store does not keep that.
	Waited Wait
	// Seen is how long the waiters have been seen to wait, in the order of the places.
	Seen []Wait
}

// Wait is how long a waiter has been seen to wait.
type Wait struct {
	For   time.Duration
	Least bool // nobody looked when it began: it may have lasted for much longer
}

// longer returns the wait that has been seen for longer.
func longer(a, b Wait) Wait {
	if b.For > a.For || b.For == a.For && b.Least {
		return b
	}
	return a
}

// At returns the key as a later entry has it. Of its waiters it keeps how long those that are still
// there had been seen to wait.
func (k *Key) At(e store.Entry) Key {
	now := Key{Entry: e}
	for _, p := range e.Places {
		seen := Wait{Least: true} // of a waiter that has come since
		if i := slices.IndexFunc(k.Places, func(o store.PlaceInfo) bool { return o.Token == p.Token }); i >= 0 {
			seen = k.Seen[i]
		}
		now.Seen, now.Waited = append(now.Seen, seen), longer(now.Waited, seen)
	}
	return now
}

// New returns a survey of a namespace, or of all if it is nil. A process has one, because each counts
// a wait from when it saw the waiter itself.
func New(in store.Inspector, namespace *string) *Survey {
	return &Survey{in: in, namespace: namespace}
}

// Look returns the last report. If that is older than maxAge, it starts a look at the store, and
// waits for it for at most a second. All callers share one look, and looks take at most a
// fiftieth of the time. So a report can be older if one took long: 7 minutes at most. After a look
// that failed the next one begins after as long as it took, and after twice as long with each further
// failure, so that a report comes soon after an outage. Until then Look returns the store's error. It
// returns ErrCounting until the first look is over.
func (s *Survey) Look(ctx context.Context, maxAge time.Duration) (*Report, error) {
	s.mu.Lock()
	now := time.Now()
	if s.looking == nil && (s.at.IsZero() || !now.Before(s.next) && now.Sub(s.at) >= maxAge) {
		s.looking = make(chan struct{})
		// Detached, because other callers get the same report.
		go s.look(context.WithoutCancel(ctx))
	}
	looking := s.looking
	s.mu.Unlock()
	if looking != nil {
		late := time.NewTimer(patience)
		defer late.Stop()
		select {
		case <-looking:
		case <-late.C:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() {
		return nil, ErrCounting
	}
	return s.last, s.err
}

// look looks at the store.
func (s *Survey) look(ctx context.Context) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := s.read(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.err, s.at = r, err, time.Now()
	took := s.at.Sub(began)
	pause := share * took
	if r != nil {
		r.At, r.Took = s.at, took
		s.failed = 0
	} else {
		pause = min(pause, took<<min(s.failed, 6)) // 1<<6 is above share
		s.failed++
	}
	s.next = s.at.Add(pause)
	close(s.looking)
	s.looking = nil
}

// read reads the live keys.
func (s *Survey) read(ctx context.Context) (*Report, error) {
	r := &Report{Namespaces: map[string]Counts{}}
	if s.namespace != nil {
		r.Namespaces[*s.namespace] = Counts{}
	} else {
		r.Namespaces[""] = Counts{}
	}
	now, seen := time.Now(), map[waiter]sight{}
	least := now.Sub(s.before) > near
	for e, err := range s.in.List(ctx, store.Query{Namespace: s.namespace, Conditions: live, HeldFor: Long, Places: true}) {
		if err != nil {
			return nil, err
		}
		k := Key{Entry: e}
		for _, p := range e.Places {
			if p.Reserved {
				k.Seen = append(k.Seen, Wait{})
				continue
			}
			w := waiter{e.Key, p.Token}
			first, ok := s.seen[w]
			if !ok {
				first = sight{now, least}
			}
			seen[w] = first
			wait := Wait{now.Sub(first.at), first.least}
			k.Seen = append(k.Seen, wait)
			k.Waited = longer(k.Waited, wait)
		}
		c := r.Namespaces[e.Key.Namespace]
		c.Waiters += e.Waiters
		c.OldestWait = max(c.OldestWait, k.Waited.For)
		long := e.Condition == store.ConditionHeld && k.heldFor() >= Long
		switch {
		case e.Condition == store.ConditionUnknown:
			c.Unknown++
			r.Unknown = append(r.Unknown, k)
		case e.Waiters > 0 || long:
			r.Waits = append(r.Waits, k)
		}
		if long {
			c.Long++
		}
		r.Namespaces[e.Key.Namespace] = c
	}
	s.seen, s.before = seen, now
	r.Waits = oldest(r.Waits, func(k *Key) time.Duration { return k.Waited.For })
	r.Unknown = oldest(r.Unknown, (*Key).heldFor)
	return r, nil
}

// oldest returns keys in the order of their age: the first of all namespaces, and the first of each.
func oldest(keys []Key, age func(*Key) time.Duration) []Key {
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(age(&b), age(&a)), cmp.Compare(b.heldFor(), a.heldFor()),
			cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	of := map[string]int{}
	var some []Key
	for i, k := range keys {
		if of[k.Key.Namespace]++; i < listed || of[k.Key.Namespace] <= listed {
			some = append(some, k)
		}
	}
	return some
}

// heldFor returns how long ago the oldest lease was granted.
func (k *Key) heldFor() (longest time.Duration) {
	for _, a := range k.Runs {
		longest = max(longest, a.Since)
	}
	return longest
}
