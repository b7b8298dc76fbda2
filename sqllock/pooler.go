package sqllock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5/stdlib"
)

// refusePooler returns ErrPooler when the pool's connections do not keep their sessions, or when
// the driver does not tell.
func refusePooler(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, 2*answerLimit)
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrServer, err)
	}
	defer conn.Close()
	told := sessionOf(conn)
	if told == 0 {
		return errSilentDriver
	}
	var pid int64
	if err := conn.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return fmt.Errorf("%w: %w", ErrServer, err)
	}
	if int64(told) != pid { // the number that a pooler tells its client is not a server's
		return poolerError()
	}
	return nil
}

var errSilentDriver = fmt.Errorf("%w: this driver does not tell the number of a session, so a pooler would not be noticed; use pgx's driver, or set AdvisoryOptions.SessionPooler if there is no pooler, or one with pool_mode=session", ErrPooler)

func poolerError() error {
	return fmt.Errorf("%w; connect to the server itself, use LockTx, or set SessionPooler if the pooler uses pool_mode=session", ErrPooler)
}

// sessionOf returns the number of the connection's session, or 0 if the driver does not
// tell it.
func sessionOf(conn *sql.Conn) (pid uint32) {
	_ = conn.Raw(func(c any) error {
		if c, ok := c.(*stdlib.Conn); ok {
			pid = c.Conn().PgConn().PID()
		}
		return nil
	})
	return pid
}
