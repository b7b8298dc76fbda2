package pgstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/backoff"
)

// listenAgain is the pause before a lost connection is made again.
var listenAgain = backoff.Exponential{Min: 10 * time.Millisecond, Max: time.Second}

const (
	// A connection without a message for pingGap is asked, and has pingLimit to answer.
	pingGap   = 5 * time.Second
	pingLimit = 4 * time.Second
)

// listenSQL sets up the connection that listens. The server notices within 30 s when this host
// is cut off.
const listenSQL = `SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4;
SET idle_session_timeout = 0`

// listen keeps listening until ctx ends. If a pooler turns out to be in between, waiters are
// polled for when they ask next.
func (u *subscriber) listen(ctx context.Context) {
	for failed := 1; ; failed++ {
		start := time.Now()
		err := u.subscribe(ctx)
		u.process.Store(0)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errPooled) && u.s.options.Wake == WakeAuto {
			u.s.pooled.Store(true)
			return
		}
		if time.Since(start) > listenAgain.Max {
			failed = 1
		}
		if listenAgain.Wait(ctx, failed) != nil {
			return
		}
	}
}

// subscribe listens on a connection of its own until that is lost.
func (u *subscriber) subscribe(ctx context.Context) error {
	dialing, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	config := u.s.config.ConnConfig.Copy()
	if u.s.config.BeforeConnect != nil {
		if err := u.s.config.BeforeConnect(dialing, config); err != nil {
			return err
		}
	}
	// Each connection has another number, because the lock of the last one may still be
	// held.
	process := rand.Int64N(1<<63-1) + 1
	if u.s.server.Relays.Load() {
		process = -process
	}
	channel := u.s.names.prefix + "_" + strconv.FormatUint(uint64(process), 16)
	config.OnNotification = nil
	conn, err := pgx.ConnectConfig(dialing, config)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), pingLimit)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if err := direct(dialing, conn); err != nil {
		return err
	}
	if _, err := conn.Exec(dialing, listenSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	// The lock shows that the process listens, for as long as the connection lives.
	if _, err := conn.Exec(dialing, "SELECT pg_advisory_lock($1)", pgx.QueryExecModeExec, process); err != nil {
		return err
	}
	if _, err := conn.Exec(dialing, `LISTEN "`+channel+`"`, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	u.process.Store(process)
	u.confirm()
	for {
		waiting, cancel := context.WithTimeout(ctx, pingGap)
		n, err := conn.WaitForNotification(waiting)
		idle := waiting.Err() != nil
		cancel()
		switch {
		case err == nil:
			if n.Channel == channel {
				u.receive(n.Payload)
			}
		case ctx.Err() != nil || !idle || conn.IsClosed():
			return err
		default:
			asking, cancel := context.WithTimeout(ctx, pingLimit)
			err := conn.Ping(asking)
			cancel()
			if err != nil {
				return err
			}
		}
	}
}
