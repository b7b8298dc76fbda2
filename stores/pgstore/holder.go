package pgstore

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/store"
)

// Holder holds leases in a transaction, for Lease.HoldIn. It costs one statement, which locks the
// row of the lease until the transaction ends. The user of the transaction needs no rights on the
// store's tables, but EXECUTE on hold_in; see the README. A transaction pooler may be in between.
//
// Hold returns ErrOtherDatabase if the transaction is not in the store's database. It has done
// nothing then, and the transaction can go on. After other errors of the server it cannot. At
// REPEATABLE READ and SERIALIZABLE the server has a conflict (40001) if the snapshot is older than the
// claim, so make it the first statement.
func (s *Store) Holder(tx pgx.Tx) store.Holder { return &holder{s, inPgx(tx)} }

// SQLHolder is Holder for database/sql.
func (s *Store) SQLHolder(tx *sql.Tx) store.Holder { return &holder{s, inSQL(tx)} }

// holder holds leases in the transaction that ask queries.
type holder struct {
	s   *Store
	ask txQuery
}

// Hold implements store.Holder, with one statement.
func (h *holder) Hold(ctx context.Context, key store.Key, token store.Token) error {
	if h.ask == nil {
		return errors.New("pgstore: Holder was given no transaction")
	}
	if err := h.s.server.Usable(ctx); err != nil {
		return err
	}
	if err := key.Validate(); err != nil {
		return err
	}
	return h.s.same(ctx, func(id string) (bool, error) {
		var fence sql.NullInt64
		err := h.ask(ctx, h.s.names.sql("SELECT @hold_in($1::text, $2::text, $3::text, 'base64', $4::text)"), &fence,
			base64.StdEncoding.EncodeToString([]byte(key.Name)), hex.EncodeToString(token[:]), key.Namespace, id)
		if sqlState(err) == stateLost {
			return false, store.ErrLost
		}
		return fence.Valid, inFailed(err, "a lease is locked")
	})
}
