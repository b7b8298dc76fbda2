package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
)

// refusePooler returns ErrPooler when the pool's connections do not keep their sessions.
func refusePooler(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, 2*answerLimit)
	defer cancel()
	pooled, err := behindPooler(ctx, db)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrServer, err)
	}
	if pooled {
		return poolerError()
	}
	return nil
}

func poolerError() error {
	return fmt.Errorf("%w; connect to the server itself, use LockTx, or set SessionPooler if the pooler uses pool_mode=session", ErrPooler)
}

// behindPooler reports whether a pooler is between the pool and the server.
func behindPooler(ctx context.Context, db *sql.DB) (bool, error) {
	// A pooler may end a session during the check by chance, but hardly three times.
	for range 3 {
		pooled, known, err := outlivesConnection(ctx, db)
		if pooled || known || err != nil {
			return pooled, err
		}
	}
	return false, nil
}

// outlivesConnection reports whether a session goes on when its connection ends. known:
// the driver tells it without a trial.
func outlivesConnection(ctx context.Context, db *sql.DB) (pooled, known bool, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return false, false, err
	}
	defer conn.Close()
	var pid int64
	if err := conn.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return false, false, err
	}
	// The number that a pooler tells its client is not a server's.
	if clientPID := sessionOf(conn); clientPID != 0 {
		return int64(clientPID) != pid, true, nil
	}
	// Other drivers do not tell the number. But only a pooler's session survives its
	// connection.
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	limit := time.Now().Add(answerLimit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var lives bool
		err := db.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1::int)", pid).Scan(&lives)
		if err != nil || !lives || time.Now().After(limit) {
			return lives, false, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, false, context.Cause(ctx)
		}
	}
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
