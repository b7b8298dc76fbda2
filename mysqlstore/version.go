package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Version returns the version of the tables that are there, 0 when there are none, and
// the one that this program wants. Of the options it uses Prefix; the errors are those
// of Open.
func Version(ctx context.Context, db DB, o *Options) (have, want int, err error) {
	options, err := o.withDefaults()
	if err != nil {
		return 0, version, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, version, explain(err)
	}
	defer conn.Close()
	n := namer{options.Prefix}
	have, err = n.version(ctx, conn)
	if err == nil && 0 < have && have < version {
		have, err = n.versionAfterwards(ctx, conn, have)
	}
	return have, version, explain(err)
}

// versionAfterwards returns the version that there is when nobody is at work on it: who
// makes new tables passes through the old versions, each of which is there for a moment.
func (n namer) versionAfterwards(ctx context.Context, conn *sql.Conn, have int) (int, error) {
	lock, err := n.lock(ctx, conn)
	if err != nil {
		return 0, err
	}
	var got sql.NullInt64
	if err := conn.QueryRowContext(ctx, fmt.Sprintf("SELECT GET_LOCK('%s',%d)", lock, int(lockLimit.Seconds()))).Scan(&got); err != nil || got.Int64 != 1 {
		return have, err
	}
	if _, err := conn.ExecContext(ctx, "COMMIT"); err != nil { // see migrate
		return 0, err
	}
	have, err = n.version(ctx, conn)
	_, unlocked := conn.ExecContext(ctx, fmt.Sprintf("DO RELEASE_LOCK('%s')", lock))
	return have, errors.Join(err, unlocked)
}
