package mysqlstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
)

const (
	// clockTolerance is how far a clock may step without a word.
	clockTolerance = 500 * time.Millisecond
	// nearlyUsed is the part of the connections above which there is advice.
	nearlyUsed = 0.9
	// longOpen is how long a transaction may be open without a word.
	longOpen = 10 * time.Minute
	// smallPacket is the smallest max_allowed_packet without a word: progress has
	// to fit into it however it is written.
	smallPacket = 4 << 20
)

var _ dibs.Checker = (*Store)(nil)

// Check implements dibs.Checker, with a few questions.
//
// The names of what it finds: version, read-only, isolation, durability, binary-log,
// cluster, tables, transactions, connections, packet, clock.
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
	s.clocks.check(c, f)
	c.checkTables(f, s.names)
	// The worst first.
	order := []dibs.Severity{dibs.SeverityDangerous, dibs.SeverityAdvice, dibs.SeverityUnchecked}
	slices.SortStableFunc(c.found, func(a, b dibs.Finding) int {
		return slices.Index(order, a.Severity) - slices.Index(order, b.Severity)
	})
	return c.found, nil
}

// facts is what the server tells.
type facts struct {
	settings  map[string]string // global ones
	session   map[string]string
	connected int64
	oldest    int64 // for how many seconds the oldest transaction is open; -1: it does not tell

	engines map[string]string // of the store's tables
	indexes map[string]bool   // "table.index"
	version int64             // of the tables; 0: they are not there
	fence   int64             // the highest of all

	shows int64         // the server's clock
	at    time.Time     // here, with the monotonic clock
	vague time.Duration // how far off that may be
}

func (s *Store) facts(ctx context.Context) (*facts, error) {
	f := &facts{settings: map[string]string{}, session: map[string]string{}, engines: map[string]string{}, indexes: map[string]bool{}, oldest: -1}
	pairs := func(add func(name, value string)) func(r *reading) {
		return func(r *reading) {
			var name, value string
			r.scan(&name, &value)
			add(strings.ToLower(name), value)
		}
	}
	ask := s.script()
	ask.raw("SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version','read_only','super_read_only','innodb_read_only'," +
		"'innodb_flush_log_at_trx_commit','log_bin','sync_binlog','binlog_format','max_connections','max_allowed_packet','wsrep_on')").
		asks(pairs(func(name, value string) { f.settings[name] = value }))
	ask.raw("SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation','tx_isolation','autocommit')").
		asks(pairs(func(name, value string) { f.session[name] = value }))
	ask.raw("SHOW GLOBAL STATUS WHERE Variable_name='Threads_connected'").asks(func(r *reading) { r.scan(new(string), &f.connected) })
	ours := "table_schema=DATABASE() AND table_name IN ('" + s.names.table(strings.Join(tables, "','"+s.names.table(""))) + "')"
	ask.raw("SELECT table_name,engine FROM information_schema.tables WHERE " + ours).
		asks(pairs(func(name, value string) { f.engines[name] = value }))
	ask.raw("SELECT DISTINCT table_name,index_name FROM information_schema.statistics WHERE " + ours).
		asks(pairs(func(name, value string) { f.indexes[name+"."+value] = true }))
	ctx, cancel := context.WithTimeout(ctx, pruneLimit)
	defer cancel()
	if err := ask.on(ctx, s.front); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := s.script().raw("SELECT "+clock).asks(func(r *reading) { r.scan(&f.shows) }).on(ctx, s.front); err != nil {
		return nil, err
	}
	took := time.Since(start)
	f.at, f.vague = start.Add(took/2), took/2
	old := s.script().raw("SELECT COALESCE(TIMESTAMPDIFF(SECOND,MIN(trx_started),CONVERT_TZ(UTC_TIMESTAMP(),'+00:00','SYSTEM')),0) FROM information_schema.innodb_trx")
	if err := old.asks(func(r *reading) { r.scan(&f.oldest) }).on(ctx, s.front); err != nil && code(err) == 0 {
		return nil, err
	}
	if f.engines[s.names.table("meta")] == "" {
		return f, nil
	}
	return f, s.script().raw("SELECT version,fence FROM @meta").asks(func(r *reading) { r.scan(&f.version, &f.fence) }).on(ctx, s.front)
}

// checkup gathers findings.
type checkup struct{ found []dibs.Finding }

func (c *checkup) danger(when bool, name, what, cure string) {
	if when {
		c.found = append(c.found, dibs.Finding{Name: name, Severity: dibs.SeverityDangerous, What: what, Cure: cure})
	}
}

func (c *checkup) advice(when bool, name, what, cure string) {
	if when {
		c.found = append(c.found, dibs.Finding{Name: name, Severity: dibs.SeverityAdvice, What: what, Cure: cure})
	}
}

// checkServer looks at what the server is, and promises of what it committed.
func (c *checkup) checkServer(f *facts) {
	on := func(name string) bool { v := f.settings[name]; return v != "" && v != "OFF" && v != "0" }
	c.danger(tooOld(f.settings["version"]), "version",
		"The server is "+f.settings["version"]+", which lacks what the store uses, such as SKIP LOCKED.",
		"Upgrade it to MySQL 8.0 or MariaDB 10.6, or newer.")
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if on(name) {
			c.danger(true, "read-only", name+" is on: the server takes no writes, or none of ordinary users; it may be a replica.",
				"Connect to the primary, or turn it off.")
			break
		}
	}
	level, commits := cmp.Or(f.session["transaction_isolation"], f.session["tx_isolation"]), f.session["autocommit"]
	c.danger(level != "READ-COMMITTED" || commits != "ON", "isolation",
		fmt.Sprintf("A session of the store is %s with autocommit %s although it set READ-COMMITTED and ON: somebody in between changes it.", level, commits),
		"Connect to the server itself, or have the proxy keep what sessions set.")
	c.danger(on("wsrep_on"), "cluster",
		"The server is a node of a Galera cluster: each node has its own clock, by which it ends leases, and its own row locks.",
		"Have all processes use the same node, and the others only when that is down; or guard what you write with the fence.")
	packet, err := strconv.Atoi(f.settings["max_allowed_packet"])
	c.advice(err == nil && packet < smallPacket, "packet",
		fmt.Sprintf("max_allowed_packet is %d: records and progress that do not fit into it are refused.", packet), "Set max_allowed_packet = 64M.")
	flush := f.settings["innodb_flush_log_at_trx_commit"]
	lost := "innodb_flush_log_at_trx_commit is " + flush + ": when the %s, the last second's grants and records are lost, and a key may be held twice."
	c.danger(flush == "0", "durability", fmt.Sprintf(lost, "server ends badly"), "Set innodb_flush_log_at_trx_commit = 1.")
	c.advice(flush == "2", "durability", fmt.Sprintf(lost, "machine fails"), "Set innodb_flush_log_at_trx_commit = 1.")
	c.danger(on("log_bin") && f.settings["binlog_format"] == "STATEMENT", "binary-log",
		"binlog_format is STATEMENT, with which the server refuses what is written at READ COMMITTED.", "Set binlog_format = ROW.")
	c.advice(on("log_bin") && f.settings["sync_binlog"] != "1", "binary-log",
		"sync_binlog is "+f.settings["sync_binlog"]+": when the machine fails, replicas may lack what was committed, and a failover to one loses it.",
		"Set sync_binlog = 1.")
}

// checkLoad looks at what others do to the server.
func (c *checkup) checkLoad(f *facts) {
	most, err := strconv.ParseInt(f.settings["max_connections"], 10, 64)
	c.advice(err == nil && float64(f.connected) > nearlyUsed*float64(most), "connections",
		fmt.Sprintf("%d of %d connections are in use: a store that loses one of its own may not get another.", f.connected, most),
		"Raise max_connections, or have the application's pools use fewer.")
	open := time.Duration(f.oldest) * time.Second
	c.advice(open > longOpen, "transactions",
		fmt.Sprintf("A transaction is open for %v: while it is, nothing that was deleted is cleared away, and calls become slower.", open),
		"Find it: SELECT * FROM information_schema.innodb_trx ORDER BY trx_started.")
	if f.oldest < 0 {
		c.found = append(c.found, dibs.Finding{
			Name: "transactions", Severity: dibs.SeverityUnchecked, What: "This user does not see how long others' transactions are open.",
			Cure: "GRANT PROCESS ON *.* to it, or have Check run by another one.",
		})
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
	last := k.last
	k.last = f
	k.mu.Unlock()
	if last == nil {
		return
	}
	here := f.at.Sub(last.at)
	step := engine.Duration(f.shows-last.shows) - here
	word := "ahead: leases and records ended that much too early"
	if step < 0 {
		word = "back: leases and records end that much too late"
	}
	// Clocks that nobody sets run apart by less than a thousandth.
	c.danger(step.Abs() > clockTolerance+last.vague+f.vague+here/1000, "clock",
		fmt.Sprintf("In the last %v the server's clock was set %v %s; or this host was suspended.", here.Round(time.Second), step.Abs().Round(100*time.Millisecond), word),
		"Have the clock slewed, not stepped (chronyd, or ntpd -x).")
}

// checkTables looks at the store's own tables: whether all is there, and whether the
// fences among them are ahead of the clock.
func (c *checkup) checkTables(f *facts, n namer) {
	if f.version != version {
		c.danger(f.version > version, "tables", fmt.Sprintf("The tables have version %d, this program knows %d.", f.version, version), "Use a newer program.")
		c.danger(f.version < version, "tables", fmt.Sprintf("The tables have version %d, this program wants %d.", f.version, version),
			"Run mysqlstore.Migrate, or dibs migrate.")
		return
	}
	var wrong, missing []string
	indexes := []string{n.table("waiter") + ".waiter_token"}
	for _, name := range tables {
		indexes = append(indexes, n.table(name)+".PRIMARY")
		if engine := f.engines[n.table(name)]; engine != "InnoDB" {
			wrong = append(wrong, n.table(name)+" ("+engine+")")
		}
	}
	for _, name := range indexes {
		if !f.indexes[name] {
			missing = append(missing, name)
		}
	}
	c.danger(len(wrong) > 0, "tables", "These tables are not InnoDB: "+strings.Join(wrong, ", ")+". They have no transactions, and no locks on rows.",
		"ALTER TABLE … ENGINE = InnoDB.")
	c.danger(len(missing) > 0, "tables", "These indexes are missing: "+strings.Join(missing, ", ")+". Calls fail, or read whole tables.",
		"Make them as mysqlstore.Migrations prints them.")
	ahead := engine.Duration(f.fence - f.shows)
	c.danger(ahead > clockTolerance, "clock",
		fmt.Sprintf("The highest fence is %v ahead of the server's clock, which was set back: leases from before end that much too late, and fences would fall if the server lost its data now.", ahead.Round(time.Second)),
		"Put the clock right, and have it slewed, not stepped (chronyd, or ntpd -x).")
}
