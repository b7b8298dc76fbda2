package pgstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
)

// Names of Findings.
const (
	findVersion     = "version"
	findReadOnly    = "read-only"
	findIsolation   = "isolation"
	findDurability  = "durability"
	findReplication = "replication"
	findTables      = "tables"
	findVacuum      = "vacuum"
	findTimeout     = "timeout"
	findConnections = "connections"
	findPooler      = "pooler"
	findClock       = "clock"
)

const (
	// clockTolerance is how far a clock may step without a word.
	clockTolerance = 500 * time.Millisecond
	// nearlyUsed is the part of the connections above which there is advice.
	nearlyUsed = 0.9
	// longOpen is how long a transaction may be open without a word.
	longOpen = 10 * time.Minute
	// shortTimeout is the shortest statement_timeout without a word: a call waits
	// 2 s for a lock at most.
	shortTimeout = 4 * time.Second
)

var _ dibs.Checker = (*Store)(nil)

// Check implements dibs.Checker, with a few questions.
//
// The names of what it finds: version, read-only, isolation, durability,
// replication, tables, vacuum, timeout, connections, pooler, clock.
func (s *Store) Check(ctx context.Context) ([]dibs.Finding, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	f, err := s.facts(ctx)
	if err != nil {
		return nil, explain(err)
	}
	c := &checkup{}
	c.checkServer(f)
	c.checkLoad(f)
	if s.pooled.Load() {
		c.find(findPooler, dibs.SeverityAdvice,
			"A transaction pooler is between us and the server: nobody can listen through it, so those who wait poll, every 2 to 50 ms.",
			"Give the store the server's own address if hand-overs have to be quick.")
	}
	s.clocks.check(c, f)
	if err := s.checkTables(ctx, c, f); err != nil {
		return nil, explain(err)
	}
	return c.findings(), nil
}

// facts is what sql/check.sql tells.
type facts struct {
	version                     string
	number                      int
	readOnly                    bool
	isolation                   string
	fsync, pageWrites           bool
	standbys                    *string // synchronous ones
	vacuums                     bool
	timeout                     float64 // seconds; 0: none
	connections, used, replicas int
	seesAll                     bool
	oldest                      *float64 // seconds
	shows                       time.Time
	at                          time.Time     // here, with the monotonic clock
	vague                       time.Duration // how far off that may be
}

func (s *Store) facts(ctx context.Context) (*facts, error) {
	f := &facts{}
	start := time.Now()
	err := s.front.QueryRow(ctx, s.names.source("check"), pgx.QueryExecModeExec).Scan(
		&f.version, &f.number, &f.readOnly, &f.isolation, &f.fsync, &f.pageWrites, &f.standbys, &f.vacuums, &f.timeout,
		&f.connections, &f.used, &f.replicas, &f.seesAll, &f.oldest, &f.shows)
	took := time.Since(start)
	f.at, f.vague = start.Add(took/2), took/2
	return f, err
}

// checkup gathers findings.
type checkup struct{ found []dibs.Finding }

func (c *checkup) find(name string, severity dibs.Severity, what, cure string) {
	c.found = append(c.found, dibs.Finding{Name: name, Severity: severity, What: what, Cure: cure})
}

// findings returns what was found, the worst first.
func (c *checkup) findings() []dibs.Finding {
	order := []dibs.Severity{dibs.SeverityDangerous, dibs.SeverityAdvice, dibs.SeverityUnchecked}
	slices.SortStableFunc(c.found, func(a, b dibs.Finding) int {
		return slices.Index(order, a.Severity) - slices.Index(order, b.Severity)
	})
	return c.found
}

// checkServer looks at what the server promises.
func (c *checkup) checkServer(f *facts) {
	if f.number/10000 < oldest {
		c.find(findVersion, dibs.SeverityDangerous,
			fmt.Sprintf("The server is PostgreSQL %s, which lacks what the functions use.", f.version),
			fmt.Sprintf("Upgrade it to %d or newer.", oldest))
	}
	if f.readOnly {
		c.find(findReadOnly, dibs.SeverityDangerous,
			"The server takes no writes: it is a standby, or default_transaction_read_only is on.",
			"Connect to the primary, such as with target_session_attrs=read-write.")
	}
	if f.isolation != "read committed" {
		c.find(findIsolation, dibs.SeverityDangerous,
			fmt.Sprintf("Transactions of this user are %s from the start, at which the functions refuse to work.", f.isolation),
			"ALTER ROLE … SET default_transaction_isolation = 'read committed'.")
	}
	if !f.fsync {
		c.find(findDurability, dibs.SeverityDangerous,
			"fsync is off: when the machine fails, grants and records are lost, and the database may be damaged.",
			"Set fsync = on.")
	} else if !f.pageWrites {
		c.find(findDurability, dibs.SeverityAdvice,
			"full_page_writes is off: when the machine fails in the middle of a write, the database may be damaged.",
			"Set full_page_writes = on, unless the filesystem writes pages as a whole.")
	}
	if f.replicas > 0 && f.standbys != nil && *f.standbys == "" {
		c.find(findReplication, dibs.SeverityAdvice,
			"There are replicas and none is synchronous: at a failover the last grants and records may be lost, and a key be held twice.",
			"Set synchronous_standby_names, or guard what you write with the fence.")
	}
	if f.timeout > 0 && f.timeout < shortTimeout.Seconds() {
		c.find(findTimeout, dibs.SeverityAdvice,
			fmt.Sprintf("statement_timeout is %v: calls that wait for a busy key are cancelled as a whole.", time.Duration(f.timeout*float64(time.Second))),
			"ALTER ROLE … SET statement_timeout = '10s'.")
	}
}

// checkLoad looks at what others do to the server.
func (c *checkup) checkLoad(f *facts) {
	if float64(f.used) > nearlyUsed*float64(f.connections) {
		c.find(findConnections, dibs.SeverityAdvice,
			fmt.Sprintf("%d of %d connections are in use: a store that loses one of its own may not get another.", f.used, f.connections),
			"Raise max_connections, or have the application's pools use fewer.")
	}
	if !f.vacuums {
		c.find(findVacuum, dibs.SeverityDangerous,
			"autovacuum is off: the tables grow with every call, and calls become slower and slower.",
			"Set autovacuum = on and track_counts = on.")
	}
	switch {
	case f.oldest != nil && *f.oldest > longOpen.Seconds():
		c.find(findVacuum, dibs.SeverityAdvice,
			fmt.Sprintf("A transaction is open for %v: while it is, no dead row is cleared away, and calls become slower.", time.Duration(*f.oldest*float64(time.Second)).Round(time.Second)),
			"Find it: SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start. Set idle_in_transaction_session_timeout.")
	case !f.seesAll:
		c.find(findVacuum, dibs.SeverityUnchecked,
			"This user does not see how long others' transactions are open.",
			"GRANT pg_read_all_stats to it, or have Check run by another one.")
	}
}

// clocks remembers what the server's clock showed.
type clocks struct {
	mu   sync.Mutex
	last *facts
}

// check compares the server's clock with the last look at it: both it and the time
// here have to have gone on alike.
func (k *clocks) check(c *checkup, f *facts) {
	k.mu.Lock()
	defer k.mu.Unlock()
	last := k.last
	k.last = f
	if last == nil {
		return
	}
	here := f.at.Sub(last.at)
	step := f.shows.Sub(last.shows) - here
	// Clocks that nobody sets run apart by less than a thousandth.
	if step.Abs() <= clockTolerance+last.vague+f.vague+here/1000 {
		return
	}
	word := "ahead: leases and records ended that much too early"
	if step < 0 {
		word = "back: leases and records end that much too late"
	}
	c.find(findClock, dibs.SeverityDangerous,
		fmt.Sprintf("In the last %v the server's clock was set %v %s; or this host was suspended.", here.Round(time.Second), step.Abs().Round(100*time.Millisecond), word),
		"Have the clock slewed, not stepped (chronyd, or ntpd -x).")
}

// checkTables looks at the store's own tables: whether all is there, and whether the
// fences among them are ahead of the clock.
func (s *Store) checkTables(ctx context.Context, c *checkup, f *facts) error {
	have, err := s.names.version(ctx, s.front)
	switch {
	case err != nil:
		return err
	case have > version:
		c.find(findTables, dibs.SeverityDangerous,
			fmt.Sprintf("The tables have version %d, this program knows %d.", have, version), "Use a newer program.")
		return nil
	case have < version:
		c.find(findTables, dibs.SeverityDangerous,
			fmt.Sprintf("The tables have version %d, this program wants %d.", have, version), "Run pgstore.Migrate, or dibs migrate.")
		return nil
	}
	missing, err := s.missing(ctx)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		c.find(findTables, dibs.SeverityDangerous,
			"These indexes are missing or invalid: "+strings.Join(missing, ", ")+". Calls read whole tables, and a key may have two rows.",
			"Make them as pgstore.Migrations prints them, or REINDEX.")
	}
	var fence int64
	if err := s.front.QueryRow(ctx, s.names.sql("SELECT fence FROM @meta"), pgx.QueryExecModeExec).Scan(&fence); err != nil {
		return err
	}
	if ahead := time.UnixMicro(fence).Sub(f.shows); ahead > clockTolerance {
		c.find(findClock, dibs.SeverityDangerous,
			fmt.Sprintf("The highest fence is %v ahead of the server's clock, which was set back: leases from before end that much too late, and fences would fall if the server lost its data now.", ahead.Round(time.Second)),
			"Put the clock right, and have it slewed, not stepped (chronyd, or ntpd -x).")
	}
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
