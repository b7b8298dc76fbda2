package main

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/pgstore"
)

// newPostgres returns a PostgreSQL beside its model. It counts statements
// (pg_stat_statements) and its log, and no bytes: these are counted on their way.
func newPostgres(t *testing.T) *backend {
	_, b := startPostgres(t, &pgstore.Options{})
	return b
}

// startPostgres starts a server of which stores are opened with these options.
func startPostgres(t *testing.T, o *pgstore.Options) (*servertest.PostgresServer, *backend) {
	t.Helper()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true, MaxConnections: 300, Settings: []string{
		"shared_preload_libraries = 'pg_stat_statements'", "autovacuum = off",
	}})
	server.Query("CREATE EXTENSION pg_stat_statements")
	var in, out atomic.Int64
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &metered{Conn: conn, in: &in, out: &out}, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return server, &backend{
		model: Postgres{},
		open: func(t *testing.T, prune time.Duration) dibs.Store {
			t.Helper()
			o := *o
			o.Migrate, o.PruneEvery = true, prune
			s, err := pgstore.New(t.Context(), pool, &o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		},
		used: func(t *testing.T) counts {
			t.Helper()
			row := server.Query(`SELECT coalesce(sum(calls), 0), coalesce(sum(shared_blks_hit), 0),
				pg_current_wal_insert_lsn() - '0/0' FROM pg_stat_statements
				WHERE toplevel AND (query ~ 'dibs_(claim|renew|settle|turns)' OR query ~ 'ping' OR query ~ 'prune_records|_sweep|UPDATE .*meta')`)[0]
			return counts{
				Cost: Cost{
					Calls: number(t, row[0]), In: float64(in.Load()), Out: float64(out.Load()), Log: number(t, row[2]),
				},
				work: number(t, row[1]), calls: factor, bytes: factor, log: factor,
			}
		},
		space: func(t *testing.T) float64 {
			t.Helper()
			return number(t, server.Query("SELECT pg_total_relation_size('dibs_key') + pg_total_relation_size('dibs_waiter')")[0][0])
		},
		unit:      8192,
		alongside: map[string]float64{"work": 70}, // pages that were not cleared yet
		grain:     64 << 10,
		connections: func(t *testing.T) int {
			t.Helper()
			return int(number(t, server.Query("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dibs'")[0][0]))
		},
	}
}

// metered counts what goes over a connection.
type metered struct {
	net.Conn
	in, out *atomic.Int64
}

func (m *metered) Write(b []byte) (int, error) {
	n, err := m.Conn.Write(b)
	m.in.Add(int64(n))
	return n, err
}

func (m *metered) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	m.out.Add(int64(n))
	return n, err
}
