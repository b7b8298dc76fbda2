package pgstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// shortTimeout is the shortest statement_timeout without a finding, because a call waits up to
// 2 s for a lock.
const shortTimeout = 4 * time.Second

var _ store.Checker = (*Store)(nil)

// Check implements store.Checker, with a few queries.
//
// The names of what it finds: product, version, read-only, isolation, durability,
// replication, rights, tables, vacuum, timeout, connections, pooler, clock.
func (s *Store) Check(ctx context.Context) ([]store.Finding, error) {
	if err := s.server.Usable(ctx); err != nil {
		return nil, err
	}
	f, err := s.facts(ctx)
	if err != nil {
		return nil, explain(err)
	}
	c := &storekit.Checkup{}
	c.Add(s.met.Findings()...)
	s.checkServer(c, f)
	checkLoad(c, f)
	c.Advice(s.pooled.Load(), "pooler",
		"A transaction pooler is in between, so no connection can listen. Clients poll for their turn, every 2 to 50 ms.",
		"Give the store the server's own address if hand-overs have to be quick.")
	s.clock.Check(c, f.clock)
	if err := s.checkTables(ctx, c, f); err != nil {
		return nil, explain(err)
	}
	return c.Findings(), nil
}

// facts is what sql/check.sql returns.
type facts struct {
	version           string
	number            int
	standby, readOnly bool
	isolation         string
	fsync, pageWrites bool
	standbys          *string // that are synchronous
	commits           string  // synchronous_commit
	vacuums           bool
	timeout           float64 // seconds; 0: none
	connections, used int64
	replicas          int
	seesAll           bool
	oldest            *float64 // seconds
	clock             storekit.ClockReading
}

func (s *Store) facts(ctx context.Context) (f *facts, err error) {
	f = &facts{}
	f.clock, err = storekit.ReadClock(func() (shows int64, err error) {
		return shows, s.front.QueryRow(ctx, s.names.source("check"), pgx.QueryExecModeExec).Scan(
			&f.version, &f.number, &f.standby, &f.readOnly, &f.isolation, &f.fsync, &f.pageWrites, &f.standbys, &f.commits, &f.vacuums, &f.timeout,
			&f.connections, &f.used, &f.replicas, &f.seesAll, &f.oldest, &shows)
	})
	return f, err
}

// checkServer looks at what the server promises.
func (s *Store) checkServer(c *storekit.Checkup, f *facts) {
	c.Danger(f.number/10000 < oldest, "version",
		fmt.Sprintf("The server is PostgreSQL %s, which lacks what the functions use.", f.version),
		fmt.Sprintf("Upgrade it to %d or newer.", oldest))
	c.Unchecked(f.readOnly && !f.standby && s.options.ReadOnly, "read-only",
		"The transactions of this user are read-only, so it is unknown whether those of the programs that use the store are.",
		"Have Check run by the user of those programs.")
	c.Danger(f.standby || f.readOnly && !s.options.ReadOnly, "read-only",
		"The server takes no writes: it is a standby, or default_transaction_read_only is on.",
		"Connect to the primary, such as with target_session_attrs=read-write.")
	c.Danger(f.isolation != "read committed", "isolation",
		fmt.Sprintf("Transactions of this user begin as %s, at which the functions refuse to work.", f.isolation),
		"ALTER ROLE … SET default_transaction_isolation = 'read committed'.")
	c.Danger(!f.fsync, "durability",
		"fsync is off: when the machine fails, grants and records are lost, and the database may be damaged.",
		"Set fsync = on.")
	c.Advice(f.fsync && !f.pageWrites, "durability",
		"full_page_writes is off: when the machine fails in the middle of a write, the database may be damaged.",
		"Set full_page_writes = on, unless the filesystem writes pages as a whole.")
	c.Advice(f.replicas > 0 && f.standbys != nil && *f.standbys == "", "replication",
		"There are replicas and none is synchronous: at a failover the last grants and records may be lost, and a key be held twice.",
		"Set synchronous_standby_names, or protect what you write with the fence.")
	c.Advice(f.standbys != nil && *f.standbys != "" && f.commits == "local", "replication",
		"synchronous_commit is local, so calls do not wait for the synchronous standbys: at a failover the last grants and records may be lost, and a key be held twice.",
		"ALTER ROLE … SET synchronous_commit = on, or protect what you write with the fence.")
	timeout := time.Duration(f.timeout * float64(time.Second))
	c.Advice(timeout > 0 && timeout < shortTimeout, "timeout",
		fmt.Sprintf("statement_timeout is %v: calls that wait for a busy key are cancelled as a whole.", timeout),
		"ALTER ROLE … SET statement_timeout = '10s'.")
}

// checkLoad looks at what other clients do to the server.
func checkLoad(c *storekit.Checkup, f *facts) {
	c.Connections(f.used, f.connections)
	c.Danger(!f.vacuums, "vacuum",
		"autovacuum is off: the tables grow with every call, and calls become slower and slower.",
		"Set autovacuum = on and track_counts = on.")
	var open time.Duration
	if f.oldest != nil {
		open = time.Duration(*f.oldest * float64(time.Second))
	}
	c.Advice(open > storekit.LongOpen, "vacuum",
		fmt.Sprintf("A transaction has been open for %v: until it ends, no dead row is removed, and calls become slower.", open.Round(time.Second)),
		"Find it: SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start. Set idle_in_transaction_session_timeout.")
	c.Unchecked(open <= storekit.LongOpen && !f.seesAll, "vacuum",
		"This user does not see how long transactions of other users have been open.",
		"GRANT pg_read_all_stats to it, or have Check run by another user.")
}

// checkTables looks at the store's own tables: whether they are complete, and whether their
// fences are ahead of the clock.
func (s *Store) checkTables(ctx context.Context, c *storekit.Checkup, f *facts) error {
	have, err := s.names.version(ctx, s.front)
	if err != nil || !c.Version(have, version, "Run pgstore.Migrate, or dibs migrate.") {
		return err
	}
	if err := s.checkRights(ctx, c); err != nil {
		return err
	}
	missing, err := s.missing(ctx)
	if err != nil {
		return err
	}
	c.Danger(len(missing) > 0, "tables",
		"These indexes are missing or invalid: "+strings.Join(missing, ", ")+". Calls read whole tables, and a key may have two rows.",
		"Make them as pgstore.Migrations prints them, or REINDEX.")
	var fence int64
	if err := s.front.QueryRow(ctx, s.names.sql("SELECT fence FROM @meta"), pgx.QueryExecModeExec).Scan(&fence); err != nil {
		return err
	}
	c.Fence(fence, f.clock.Shows)
	return nil
}

// missing returns which of the store's indexes are not there or not valid.
func (s *Store) missing(ctx context.Context) ([]string, error) {
	var want []string
	for _, name := range []string{"key_pkey", "holder_pkey", "waiter_pkey", "waiter_seq", "progress_pkey"} {
		want = append(want, s.names.prefix+"_"+name)
	}
	rows, err := s.front.Query(ctx, `SELECT w.name FROM unnest($1::text[]) AS w (name) WHERE NOT EXISTS (
		SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname = w.name AND n.nspname = $2 AND i.indisvalid)`, pgx.QueryExecModeExec, want, s.names.schema)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
