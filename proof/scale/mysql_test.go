package main

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/mysqlstore"
)

// newMariaDB returns a MariaDB beside its model. What it counts is its global status.
func newMariaDB(t *testing.T) *backend {
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true, MaxConnections: 300, Settings: []string{
		"innodb_stats_auto_recalc = OFF", // what it counts for itself it would write, too
	}})
	status := func(t *testing.T) map[string]float64 {
		t.Helper()
		all := map[string]float64{}
		for _, row := range server.Query("SHOW GLOBAL STATUS WHERE Variable_name IN ('Questions', 'Bytes_received', 'Bytes_sent', 'Innodb_os_log_written', 'Innodb_lsn_current', 'Threads_connected') OR Variable_name LIKE 'Handler_read%'") {
			all[row[0]] = number(t, row[1])
		}
		return all
	}
	return &backend{
		model: MySQL{},
		open: func(t *testing.T, prune time.Duration) dibs.Store {
			t.Helper()
			s, err := mysqlstore.Open(t.Context(), server.URL(), &mysqlstore.Options{Migrate: true, PruneEvery: prune})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		},
		used: func(t *testing.T) counts {
			t.Helper()
			now := status(t)
			c := counts{
				Cost: Cost{
					Calls: now["Questions"], In: now["Bytes_received"], Out: now["Bytes_sent"], Log: now["Innodb_lsn_current"],
				},
				calls: factor, bytes: factor, log: 2,
			}
			for _, how := range []string{"first", "key", "last", "next", "prev", "rnd", "rnd_next"} {
				c.work += now["Handler_read_"+how]
			}
			return c
		},
		space: func(t *testing.T) float64 {
			t.Helper()
			server.Query("ANALYZE TABLE dibs_key, dibs_record, dibs_waiter")
			return number(t, server.Query("SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE table_schema = 'app'")[0][0])
		},
		// A poll asks for 256 at most, and counts who comes before one of them.
		alongside:   map[string]float64{"calls": 8, "bytes in": 25_000, "bytes out": 15_000, "work": 6000},
		unit:        float64(myWidth + shape.Key),
		noise:       Cost{Log: 12_000}, // it clears away what was deleted
		grain:       2 << 20,           // it takes whole extents
		connections: func(t *testing.T) int { return int(status(t)["Threads_connected"]) },
	}
}
