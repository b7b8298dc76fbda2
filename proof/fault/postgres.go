package fault

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/stores/pgstore"
)

// postgresWitness is the witness of a PostgreSQL.
type postgresWitness struct{ conn *pgx.Conn }

func meetPostgres(ctx context.Context, url string) (witness, error) {
	config, _, err := pgstore.Parse(url, nil)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, err
	}
	return &postgresWitness{conn}, nil
}

func (w *postgresWitness) start(ctx context.Context) (start, error) {
	id, err := one[string](ctx, w.conn, "SELECT pg_postmaster_start_time()::text")
	return start{id: id}, err
}

func (w *postgresWitness) now(ctx context.Context) (time.Time, error) {
	return one[time.Time](ctx, w.conn, "SELECT clock_timestamp()")
}

func (w *postgresWitness) sever(ctx context.Context, from []*net.TCPAddr) (gone int, err error) {
	var ports []int32
	for _, addr := range from {
		ports = append(ports, int32(addr.Port))
	}
	// The planner orders the conditions of a WHERE, but not those of a CASE. Connections of
	// others must not be ended.
	rows, err := w.conn.Query(ctx, `SELECT pid FROM (
			SELECT pid, CASE WHEN client_port = ANY($1) AND host(client_addr) = ANY($2) THEN pg_terminate_backend(pid) END AS ended
			FROM pg_stat_activity) AS all_of_them
		WHERE ended`, ports, hosts(from))
	if err != nil {
		return 0, err
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return 0, err
	}
	// That was a signal. The rows of the ended connections go away.
	left := len(pids)
	await(evidence, func() bool {
		if left > 0 && err == nil {
			left, err = one[int](ctx, w.conn, "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1)", pids)
		}
		return left == 0 || err != nil
	})
	return len(pids) - left, err
}

func (w *postgresWitness) close() {
	ctx, cancel := context.WithTimeout(context.Background(), look)
	defer cancel()
	_ = w.conn.Close(ctx) // the server may have ended it before
}

// one returns the one value of the one row.
func one[T any](ctx context.Context, conn *pgx.Conn, query string, args ...any) (value T, err error) {
	err = conn.QueryRow(ctx, query, args...).Scan(&value)
	return value, err
}

// hosts are the hosts of the addresses.
func hosts(from []*net.TCPAddr) (all []string) {
	for _, addr := range from {
		all = append(all, addr.IP.String())
	}
	return all
}
