package sqlitestore

import "github.com/dibs-go/dibs"

// renew lets one lease last longer. The error is one of the file. An offer is not
// renewed: its waiter has yet to claim.
func (tx *transaction) renew(r *dibs.Renewal, answer *error) error {
	if *answer = r.Validate(); *answer != nil {
		return nil
	}
	tx.use(r.Key, r.Token)
	st := tx.st.renewLease
	st.BindInt(3, tx.now+micros(r.TTL))
	st.BindInt(4, tx.now)
	if err := run2(st, tx.k, r.Token[:]); err != nil {
		return err
	}
	if tx.s.conn.Changes() == 0 {
		*answer = dibs.ErrLost
		return nil
	}
	tx.dirty = true
	if r.Progress == nil {
		return nil
	}
	if err := run2(tx.st.roughenLease, tx.k, r.Token[:]); err != nil {
		return err
	}
	tx.st.saveProgress.BindBlob(3, r.Progress)
	return run2(tx.st.saveProgress, tx.k, r.Token[:])
}
