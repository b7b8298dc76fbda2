package mysqlstore

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
)

// The errors of a transaction of the application.
var (
	// ErrTransactionEnded: the run ended the transaction, or the server did because of a deadlock
	// and the run went on. Its effect may be committed in part. Its answer is not kept.
	ErrTransactionEnded = fmt.Errorf("%w (COMMIT, ROLLBACK, a statement that commits such as ALTER TABLE, or a deadlock whose error was not returned), so its answer is not kept: remove that statement, and return errors; dibs commits when the run returns, and rolls back if it returns an error", store.ErrTransactionEnded)
	// ErrOtherDatabase: the pool that was given to Transactions is not on the store's server.
	ErrOtherDatabase = errors.New("mysqlstore: the transactions are not on the store's server, so the store cannot commit with them; use a pool of the server that the store was opened on, not of a replica")
)

// codeNoSavepoint is the server's error if the transaction has no savepoint of the store.
const codeNoSavepoint = 1305

const (
	// moment is the server's time after a row was locked, because SYSDATE advances while a
	// statement waits. The difference of the two does not depend on the session's time zone, and
	// is 0 if the session has set its timestamp.
	moment = "(" + clock + "+GREATEST(0,TIMESTAMPDIFF(MICROSECOND,NOW(6),SYSDATE(6))))"
)

// settlement is the statements that settle in a transaction. They have numbers, bytes in
// hexadecimal and names, so they mean the same whatever the session has set.
type settlement struct {
	// one ends the lease of a key with one permit, and writes the record without its data. It
	// changes a row if the token holds the key. Then LAST_INSERT_ID is whether CatchUp is needed.
	one string
	// many does the same for a key with more permits, which always needs CatchUp.
	many string
	// record writes the data of the record; "" if there is no record.
	record string
}

// settleIn returns the statements that settle in a transaction.
//
// They end the lease and write the record. If other tables have rows of the key, the lease stays
// and is marked as settled. CatchUp or the next call about the key does the rest, because a
// transaction of the application may have a snapshot and not see these rows.
func (s *Store) settleIn(x *store.Settlement) (*settlement, error) {
	if err := s.validateIn(x); err != nil {
		return nil, err
	}
	keep := x.Outcome == store.Keep
	if !keep && x.Outcome != store.Release {
		return nil, errors.New("mysqlstore: a transaction can only keep or release; roll it back to abandon or undo")
	}
	k := engine.KeyOf(x.Key)
	statement := func(sql string) *script {
		t := s.script()
		t.names.database = "`" + strings.ReplaceAll(s.config.DBName, "`", "``") + "`."
		return t.raw(sql)
	}
	// settle is for a lease in that table.
	settle := func(in, sql, also string) string {
		t := statement(sql)
		if keep {
			t.raw(",x.rec_token=").value(x.Token).raw(",x.rec_fingerprint=" + in + ".fingerprint,x.rec_written=" + moment)
			t.raw(",x.rec_ends=" + moment + "+").value(engine.Micros(x.Retention))
		}
		t.raw(also + " WHERE x.k=").value(k).raw(" AND " + in + ".token=").value(x.Token).raw(" AND " + in + ".ends>" + moment)
		return string(t.text)
	}
	c := &settlement{
		one:  settle("x", "UPDATE @key x SET x.busy=LAST_INSERT_ID(x.busy)", ",x.ends=0,x.token=IF(x.busy,x.token,'')"),
		many: settle("h", "UPDATE @key x JOIN @holder h ON h.k=x.k AND h.abandoned=0 SET h.ends=0", ""),
	}
	if keep {
		c.record = string(statement("INSERT INTO @record (k,data) VALUES ").row(k, string(x.Data)).raw(" ON DUPLICATE KEY UPDATE data=VALUES(data)").text)
	}
	return c, nil
}

// validateIn returns an error if a settlement is wrong, or its record is too large for a
// transaction of the application.
func (s *Store) validateIn(x *store.Settlement) error {
	if n := 2*len(x.Data) + besides; n > s.packet {
		return fmt.Errorf("%w: %d bytes take twice as many in a transaction, which do not fit into the server's max_allowed_packet of %d; raise it", store.ErrTooLarge, len(x.Data), s.packet)
	}
	return remote.Validate(s.server, x)
}

// newMark returns the name of the savepoint that marks a transaction.
func newMark() string {
	t := store.NewToken()
	return "dibs_" + hex.EncodeToString(t[:])
}
