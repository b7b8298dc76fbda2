package survey

import (
	"cmp"
	"context"
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
	// listed is how many keys of each kind a report lists.
	listed = 200
	// limit is how long one look at the store can take.
	limit = 8 * time.Second
	// share is which part of the time looks take at most: one in share.
	share = 50
)

// live are the conditions of the keys that are looked at.
var live = []store.Condition{store.ConditionHeld, store.ConditionWaiting, store.ConditionUnknown}

// Survey looks at the live keys of a store. It is safe for concurrent use.
type Survey struct {
	in        store.Inspector
	namespace *string
	now       func() time.Time

	mu   sync.Mutex // held while the store is asked: other callers get the same report
	last *Report
	err  error
	next time.Time // not before: the last look has taken its share
	at   time.Time // when the last look ended
	seen map[waiter]time.Time
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
	Waits      []Key             // with waiters, or held for Long: the oldest wait first, at most 200
	Unknown    []Key             // the oldest first, at most 200
}

// Counts are the counts of a namespace.
type Counts struct {
	Held, Waiters, Unknown int
	OldestWait             time.Duration
}

// Key is a live key.
type Key struct {
	store.Entry
	// Waited is how long the oldest waiter has been seen to wait. A store does not keep that.
	Waited time.Duration
	// Seen is how long the waiters have been seen to wait, in the order of the places.
	Seen []time.Duration
}

// New returns a survey of a namespace, or of all if it is nil.
func New(in store.Inspector, namespace *string) *Survey {
	return &Survey{in: in, namespace: namespace, now: time.Now}
}

// Look returns a report that is at most maxAge old. It asks the store if there is none, but
// spends at most a fiftieth of the time on that, so a report can be older if one took long.
// It returns the store's error, for as long as it would return a report.
func (s *Survey) Look(ctx context.Context, maxAge time.Duration) (*Report, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := s.now()
	if !s.at.IsZero() && (began.Before(s.next) || began.Sub(s.at) < maxAge) {
		return s.last, s.err
	}
	// Detached, because other callers get the same report.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	s.last, s.err = s.read(ctx)
	s.at = s.now()
	took := s.at.Sub(began)
	s.next = s.at.Add(share * took)
	if s.last != nil {
		s.last.At, s.last.Took = s.at, took
	}
	return s.last, s.err
}

// read reads the live keys.
func (s *Survey) read(ctx context.Context) (*Report, error) {
	r := &Report{Namespaces: map[string]Counts{}}
	if s.namespace != nil {
		r.Namespaces[*s.namespace] = Counts{}
	} else {
		r.Namespaces[""] = Counts{}
	}
	now, seen := s.now(), map[waiter]time.Time{}
	for e, err := range s.in.List(ctx, store.Query{Namespace: s.namespace, Conditions: live, Places: true}) {
		if err != nil {
			return nil, err
		}
		k := Key{Entry: e}
		for _, p := range e.Places {
			if p.Reserved {
				k.Seen = append(k.Seen, 0)
				continue
			}
			w := waiter{e.Key, p.Token}
			first, ok := s.seen[w]
			if !ok {
				first = now
			}
			seen[w] = first
			waited := now.Sub(first)
			k.Seen = append(k.Seen, waited)
			k.Waited = max(k.Waited, waited)
		}
		c := r.Namespaces[e.Key.Namespace]
		c.Waiters += e.Waiters
		c.OldestWait = max(c.OldestWait, k.Waited)
		switch {
		case e.Condition == store.ConditionUnknown:
			c.Unknown++
			r.Unknown = append(r.Unknown, k)
		case e.Condition == store.ConditionHeld:
			c.Held++
			fallthrough
		default:
			if e.Waiters > 0 || k.heldFor() >= Long {
				r.Waits = append(r.Waits, k)
			}
		}
		r.Namespaces[e.Key.Namespace] = c
	}
	s.seen = seen
	r.Waits = oldest(r.Waits, func(k *Key) time.Duration { return k.Waited })
	r.Unknown = oldest(r.Unknown, (*Key).heldFor)
	return r, nil
}

// oldest returns the first keys in the order of their age.
func oldest(keys []Key, age func(*Key) time.Duration) []Key {
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(age(&b), age(&a)), cmp.Compare(b.heldFor(), a.heldFor()),
			cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return slices.Clone(keys[:min(len(keys), listed)])
}

// heldFor returns how long ago the oldest attempt was granted.
func (k *Key) heldFor() (longest time.Duration) {
	for _, a := range k.Attempts {
		longest = max(longest, a.Since)
	}
	return longest
}
