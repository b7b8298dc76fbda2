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

// uncancelled has a connection end, and send no request to cancel, when a call is over before its
// answer has come. Such a request would end the wait of a COMMIT for a synchronous standby: then
// the server shows and notifies what a failover loses.
func uncancelled(config *pgx.ConnConfig) {
	dial, connected := config.DialFunc, config.AfterConnect
	var made atomic.Pointer[pgconn.PgConn]
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if pg := made.Load(); pg != nil { // pgx connects again only to cancel
			_ = pg.Conn().Close() // it was given up
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
