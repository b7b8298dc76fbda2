package engine

import (
	"cmp"
	"math"
	"slices"

	"github.com/dibs-go/dibs/store"
)

// few is how many leases or places are searched one by one. More of them have an index.
const few = 16

// never is later than everything that expires.
const never = math.MaxInt64

// leases are the leases of a key that have not been ended, in any order. All have the same
// number of permits.
type leases struct {
	all     []Lease
	index   map[store.Token]int // nil while there are few
	weight  int64               // of all
	soonest int64               // none expires before
	placed  int                 // how many were granted at the number of a reserved place
	marked  int                 // how many have a fingerprint
}

// of returns the lease of a token, or nil. It is valid until a lease is added or removed.
func (ls *leases) of(t store.Token) *Lease {
	if ls.index != nil {
		if i, ok := ls.index[t]; ok {
			return &ls.all[i]
		}
		return nil
	}
	for i := range ls.all {
		if ls.all[i].Token == t {
			return &ls.all[i]
		}
	}
	return nil
}

// add adds a lease and returns it. It is valid until a lease is added or removed.
func (ls *leases) add(l *Lease) *Lease {
	n := len(ls.all)
	ls.all = append(ls.all, *l)
	ls.count(l, 1)
	l = &ls.all[n]
	ls.prolong(l, l.Ends)
	switch {
	case ls.index != nil:
		ls.index[l.Token] = n
	case n >= few:
		ls.index = make(map[store.Token]int, 4*few)
		for i := range ls.all {
			ls.index[ls.all[i].Token] = i
		}
	}
	return l
}

// remove removes a lease.
func (ls *leases) remove(l *Lease) {
	ls.count(l, -1)
	last := len(ls.all) - 1
	if ls.index != nil {
		i := ls.index[l.Token]
		delete(ls.index, l.Token)
		if i != last {
			ls.index[ls.all[last].Token] = i
		}
	}
	if from := &ls.all[last]; l != from {
		*l = *from
	}
	ls.all[last] = Lease{}
	if ls.all = ls.all[:last]; last == 0 {
		ls.index = nil
	}
}

func (ls *leases) count(l *Lease, n int) {
	ls.weight += int64(n) * l.Weight
	if l.Seq != 0 {
		ls.placed += n
	}
	if !l.Fingerprint.IsZero() {
		ls.marked += n
	}
}

// prolong makes a lease expire then.
func (ls *leases) prolong(l *Lease, ends int64) {
	l.Ends = ends
	if len(ls.all) == 1 {
		ls.soonest = ends
	} else {
		ls.soonest = min(ls.soonest, ends)
	}
}

// takeOver removes the leases that are over at that time, and returns them in the order in
// which they expired.
func (ls *leases) takeOver(now int64) (over []Lease) {
	ls.soonest = never
	for i := 0; i < len(ls.all); {
		if l := &ls.all[i]; l.Ends <= now {
			over = append(over, *l)
			ls.remove(l)
		} else {
			ls.soonest = min(ls.soonest, l.Ends)
			i++
		}
	}
	slices.SortFunc(over, func(a, b Lease) int { return cmp.Or(cmp.Compare(a.Ends, b.Ends), cmp.Compare(a.Fence, b.Fence)) })
	return over
}

// first returns when the first lease expires. With many leases it may be too early.
func (ls *leases) first() int64 {
	if len(ls.all) > few {
		return ls.soonest
	}
	first := int64(never)
	for i := range ls.all {
		first = min(first, ls.all[i].Ends)
	}
	return first
}

// at reports whether a lease was granted at that number.
func (ls *leases) at(seq int64) bool {
	return ls.placed > 0 && slices.ContainsFunc(ls.all, func(l Lease) bool { return l.Seq == seq })
}

// room reports whether the leases leave room for a claim.
func (ls *leases) room(permits, weight int64) bool {
	return (len(ls.all) == 0 || ls.all[0].Permits == permits) && ls.weight+weight <= permits
}

// differ reports whether a lease has another fingerprint.
func (ls *leases) differ(f *store.Fingerprint) bool {
	return ls.marked > 0 && !f.IsZero() && slices.ContainsFunc(ls.all, func(l Lease) bool { return l.Fingerprint.Differs(*f) })
}
