package pgstore

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var errUncancelled = errors.New("pgstore: its statements are not cancelled")

// uncancelled has a connection send no request to cancel when a call is over before its answer has
// come. Such a request would end the wait of a COMMIT for a synchronous standby: then the server
// shows and notifies what a failover loses.
//
// Meanwhile the server keeps its side of the connection. So the connection has its place in the pool
// until the server has closed it, for up to 15 s (pgx), or closing ends. Otherwise calls that are
// given up would soon have all connections of a server whose standby is away. A server that keeps its
// side for longer loses as many connections as the pool has places, every 15 s.
func uncancelled(config *pgx.ConnConfig, closing context.Context) {
	dial, connected := config.DialFunc, config.AfterConnect
	var made atomic.Pointer[pgconn.PgConn]
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if pg := made.Load(); pg != nil { // pgx connects again only to cancel
			go func() {
				select {
				case <-pg.CleanupDone():
				case <-closing.Done():
					_ = pg.Conn().Close() // which ends the cleanup
				}
			}()
			return nil, errUncancelled
		}
		return dial(ctx, network, addr)
	}
	config.AfterConnect = func(ctx context.Context, pg *pgconn.PgConn) error {
		made.Store(pg)
		if connected != nil {
			return connected(ctx, pg)
		}
		return nil
	}
}
