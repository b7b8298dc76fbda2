package pgstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// How soon a connection that was lost is made again.
	listenBackoffMin = 10 * time.Millisecond
	listenBackoffMax = time.Second
	// pingGap is how often a connection on which nothing is heard is asked, and
	// pingLimit how long it may owe the answer.
	pingGap   = 5 * time.Second
	pingLimit = 4 * time.Second
)

// listenSQL makes a connection one that listens. The lock says to whoever grants
// that somebody does, for as long as the connection lives; where this host is cut
// off, the server notices in half a minute.
const listenSQL = `SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4;
SET idle_session_timeout = 0`

// listen keeps listening until the store is closed.
func (w *waiting) listen() {
	backoff := listenBackoffMin
	for {
		start := time.Now()
		err := w.attend(w.s.life)
		w.process.Store(0)
		if w.s.life.Err() != nil {
			return
		}
		if errors.Is(err, errPooled) && w.s.options.Wake == WakeAuto {
			w.s.pooled.Store(true)
			w.poll()
			return
		}
		if time.Since(start) > listenBackoffMax {
			backoff = listenBackoffMin
		}
		pause := time.NewTimer(backoff)
		select {
		case <-pause.C:
		case <-w.s.life.Done():
			pause.Stop()
			return
		}
		backoff = min(2*backoff, listenBackoffMax)
	}
}

// attend listens on a connection of its own until that is lost.
func (w *waiting) attend(life context.Context) error {
	dialing, cancel := context.WithTimeout(life, openLimit)
	defer cancel()
	config := w.s.config.ConnConfig.Copy()
	if w.s.config.BeforeConnect != nil {
		if err := w.s.config.BeforeConnect(dialing, config); err != nil {
			return err
		}
	}
	// A number of its own for each connection: the lock of the last one may still
	// stand.
	process := rand.Int64N(1<<63-1) + 1
	channel := w.s.names.prefix + "_" + strconv.FormatInt(process, 16)
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
	if _, err := conn.Exec(dialing, "SELECT pg_advisory_lock($1)", pgx.QueryExecModeExec, process); err != nil {
		return err
	}
	if _, err := conn.Exec(dialing, `LISTEN "`+channel+`"`, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	w.process.Store(process)
	w.opened()
	for {
		waiting, cancel := context.WithTimeout(life, pingGap)
		n, err := conn.WaitForNotification(waiting)
		idle := waiting.Err() != nil
		cancel()
		switch {
		case err == nil:
			if n.Channel == channel {
				w.hear(n.Payload)
			}
		case life.Err() != nil || !idle || conn.IsClosed():
			return err
		default:
			asking, cancel := context.WithTimeout(life, pingLimit)
			err := conn.Ping(asking)
			cancel()
			if err != nil {
				return err
			}
		}
	}
}
