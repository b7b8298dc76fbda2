package memstore

import (
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// claim answers one valid claim.
func (sh *shard) claim(c *store.Claim, a *store.Answer, now int64) error {
	e := sh.entries[c.Key]
	if e == nil {
		if c.Mode == store.Look {
			a.State = store.Free
			return nil
		}
		if e = sh.add(c.Key); e == nil {
			return errTooManyKeys
		}
	}
	terms := engine.Terms{MaxWaiters: sh.store.options.MaxWaiters}
	sh.begin(e, now).Claim(c, &terms, a)
	sh.finish(e, now)
	return a.Err
}

// renew answers one valid renewal.
func (sh *shard) renew(e *entry, st *engine.State, r *store.Renewal) error {
	fence := st.Holds(r.Token)
	if fence == 0 {
		return store.ErrLost
	}
	if r.Progress != nil && !sh.store.take(len(r.Progress)-len(e.life.progress[fence])) {
		return errNoBytes
	}
	st.Renew(r)
	return nil
}

// settle answers one valid settlement.
func (sh *shard) settle(e *entry, st *engine.State, x *store.Settlement) error {
	if x.Outcome == store.Keep && st.Holds(x.Token) != 0 {
		if int64(len(x.Data)) > sh.store.options.MaxBytes {
			return errTooManyBytes
		}
		if !sh.store.take(len(x.Data) - len(e.data)) {
			return errNoBytes
		}
	}
	if !st.Settle(x) {
		return store.ErrLost
	}
	return nil
}
