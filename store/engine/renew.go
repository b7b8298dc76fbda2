package engine

import "github.com/dibs-go/dibs/store"

// Renew prolongs a lease, and reports whether the token has one.
func (st *State) Renew(r *store.Renewal) bool {
	l := st.leases.of(r.Token)
	if l == nil || l.Ends <= st.now {
		return false
	}
	st.leases.prolong(l, st.most+Micros(r.TTL))
	if r.Progress != nil {
		st.save(l.Fence)
		st.step(Step{Does: WriteProgress, Fence: l.Fence, Data: r.Progress})
	}
	return true
}

// save notes that progress was saved under that fence.
func (st *State) save(fence int64) {
	if st.saved == nil {
		st.saved = map[int64]bool{}
	}
	st.saved[fence] = true
}
