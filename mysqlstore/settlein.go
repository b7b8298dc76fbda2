package mysqlstore

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
)

// What can be wrong with a transaction of the application.
var (
	// ErrTransactionEnded: the run has ended the transaction by itself, or the server has because
	// of a deadlock and the run went on. What it did may be committed, in part, and its
	// answer is not kept.
	ErrTransactionEnded = fmt.Errorf("%w (COMMIT, ROLLBACK, a statement that commits such as ALTER TABLE, or a deadlock whose error was not returned), so its answer is not kept: leave that to dibs, and return errors", dibs.ErrTransactionEnded)
	// ErrOtherDatabase: what was given to Transactions is not of the server that the
	// store is on.
	ErrOtherDatabase = errors.New("mysqlstore: the transactions are not on the store's server: an answer could not be committed with its effect; give Transactions a pool of the server that the store was opened on, and not of a replica")
)

// codeNoSavepoint is what the server says when the transaction is not the one that was
// begun.
const codeNoSavepoint = 1305

const (
	// moment is the server's time when a row is looked at, after its lock is had:
	// SYSDATE goes on while a statement waits. The difference of the two does without
	// the session's time zone, and holds where the session has its clock stopped.
	moment = "(" + clock + "+GREATEST(0,TIMESTAMPDIFF(MICROSECOND,NOW(6),SYSDATE(6))))"

	// catchUpLimit bounds what is done after a settlement for those who wait.
	catchUpLimit = 2 * time.Second
)

// settlement is the statements that settle in a transaction: numbers, bytes in
// hexadecimal and names, so that they mean the same whatever the session has set.
type settlement struct {
	// one ends the lease of a key with one permit, and writes down what there is to
	// know of the record. It changes a row if the token holds the key; LAST_INSERT_ID
	// is then whether there is something left to do when it is committed.
	one string
	// many does the same for a key with several, of which there always is.
	many string
	// record writes the record's data; "" when there is none.
	record string
}

// settleIn returns the statements that settle in a transaction.
//
// The lease is ended and the record is written there, which is all that has to be there.
// Of a key of which there is more to know the lease stays, as one that was settled, and
// catchUp sees to the rest, or whoever next works on the key: a transaction of the
// application may have a snapshot, and not see what there is.
func (s *Store) settleIn(x *dibs.Settlement) (*settlement, error) {
	if err := cmp.Or(x.Validate(), s.fitsIn(x)); err != nil {
		return nil, err
	}
	keep := x.Outcome == dibs.Keep
	if !keep && x.Outcome != dibs.Release {
		return nil, errors.New("mysqlstore: a transaction keeps or releases; what is abandoned or undone is rolled back")
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

// fitsIn returns an error when a record is too large to be kept in a transaction.
func (s *Store) fitsIn(x *dibs.Settlement) error {
	if n := 2*len(x.Data) + besides; n > s.packet {
		return fmt.Errorf("%w: %d bytes take twice as much in a transaction, which does not fit into the server's max_allowed_packet of %d; raise it", dibs.ErrTooLarge, len(x.Data), s.packet)
	}
	return s.fits(x)
}

// newMark returns what a transaction is recognized by.
func newMark() string {
	t := dibs.NewToken()
	return "dibs_" + hex.EncodeToString(t[:])
}

// catchUp sees to what a settlement in a transaction has left to do. If it fails,
// whoever next works on the key does that; those who wait find out by asking.
func (s *Store) catchUp(ctx context.Context, key dibs.Key) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), catchUpLimit)
	defer cancel()
	_ = s.force(ctx, key, (*engine.State).Advance)
}
