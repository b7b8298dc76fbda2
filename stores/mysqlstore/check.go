package mysqlstore

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/store/storekit"
)

// smallPacket is the smallest max_allowed_packet without a finding, because progress has to
// fit into it however it is escaped.
const smallPacket = 4 << 20

var _ store.Checker = (*Store)(nil)

// Check implements store.Checker, with a few queries.
//
// The names of what it finds: product, version, read-only, isolation, durability, binary-log,
// rights, tables, transactions, connections, packet, clock.
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
	checkServer(c, f)
	checkLoad(c, f)
	s.clock.Check(c, f.clock)
	checkTables(c, f, s.names)
	if err := s.checkRights(ctx, c, f); err != nil {
		return nil, explain(err)
	}
	return c.Findings(), nil
}

// facts is what the server returns.
type facts struct {
	settings  map[string]string // global ones
	session   map[string]string
	connected int64
	oldest    int64 // the age of the oldest transaction, in seconds; -1: this user may not see it

	engines map[string]string // of the store's tables
	indexes map[string]bool   // "table.index"
	version int64             // of the tables; 0: they are not there
	fence   int64             // the highest of all

	clock storekit.ClockReading
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
		"'innodb_flush_log_at_trx_commit','log_bin','sync_binlog','binlog_format','max_connections','max_allowed_packet')").
		asks(pairs(func(name, value string) { f.settings[name] = value }))
	ask.raw("SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation','tx_isolation','autocommit')").
		asks(pairs(func(name, value string) { f.session[name] = value }))
	ask.raw("SHOW GLOBAL STATUS WHERE Variable_name='Threads_connected'").asks(func(r *reading) { r.scan(new(string), &f.connected) })
	ours := "table_schema=DATABASE() AND table_name IN ('" + s.names.table(strings.Join(tables, "','"+s.names.table(""))) + "')"
	ask.raw("SELECT table_name,engine FROM information_schema.tables WHERE " + ours).
		asks(pairs(func(name, value string) { f.engines[name] = value }))
	ask.raw("SELECT DISTINCT table_name,index_name FROM information_schema.statistics WHERE " + ours).
		asks(pairs(func(name, value string) { f.indexes[name+"."+value] = true }))
	ctx, cancel := context.WithTimeout(ctx, remote.PruneLimit)
	defer cancel()
	if err := ask.on(ctx, s.front); err != nil {
		return nil, err
	}
	var err error
	f.clock, err = storekit.ReadClock(func() (shows int64, err error) {
		return shows, s.script().raw("SELECT "+clock).asks(func(r *reading) { r.scan(&shows) }).on(ctx, s.front)
	})
	if err != nil {
		return nil, err
	}
	old := s.script().raw("SELECT COALESCE(TIMESTAMPDIFF(SECOND,MIN(trx_started),CONVERT_TZ(UTC_TIMESTAMP(),'+00:00','SYSTEM')),0) FROM information_schema.innodb_trx")
	if err := old.asks(func(r *reading) { r.scan(&f.oldest) }).on(ctx, s.front); err != nil && code(err) == 0 {
		return nil, err
	}
	if !f.has(s.names, "meta") {
		return f, nil
	}
	return f, s.script().raw("SELECT version,fence FROM @meta").asks(func(r *reading) { r.scan(&f.version, &f.fence) }).on(ctx, s.front)
}

// checkServer looks at what the server is, and what it promises.
func checkServer(c *storekit.Checkup, f *facts) {
	on := func(name string) bool { v := f.settings[name]; return v != "" && v != "OFF" && v != "0" }
	c.Danger(tooOld(f.settings["version"]), "version",
		"The server is "+f.settings["version"]+", which lacks what the store uses, such as SKIP LOCKED.",
		"Upgrade it to MySQL 8.0 or MariaDB 10.6, or newer.")
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only"} {
		if on(name) {
			c.Danger(true, "read-only", name+" is on: the server takes no writes, or no writes of ordinary users; it may be a replica.",
				"Connect to the primary, or turn it off.")
			break
		}
	}
	level, commits := cmp.Or(f.session["transaction_isolation"], f.session["tx_isolation"]), f.session["autocommit"]
	c.Danger(level != "READ-COMMITTED" || commits != "ON", "isolation",
		fmt.Sprintf("A session of the store is %s with autocommit %s, although the store set READ-COMMITTED and ON: a proxy in between changes it.", level, commits),
		"Connect to the server itself, or have the proxy keep what sessions set.")
	packet, err := strconv.Atoi(f.settings["max_allowed_packet"])
	c.Advice(err == nil && packet < smallPacket, "packet",
		fmt.Sprintf("max_allowed_packet is %d: records and progress that do not fit into it are refused.", packet), "Set max_allowed_packet = 64M.")
	flush := f.settings["innodb_flush_log_at_trx_commit"]
	lost := "innodb_flush_log_at_trx_commit is " + flush + ": when the %s, the last second's grants and records are lost, and a key may be held twice."
	c.Danger(flush == "0", "durability", fmt.Sprintf(lost, "server ends badly"), "Set innodb_flush_log_at_trx_commit = 1.")
	c.Advice(flush == "2", "durability", fmt.Sprintf(lost, "machine fails"), "Set innodb_flush_log_at_trx_commit = 1.")
	c.Danger(on("log_bin") && f.settings["binlog_format"] == "STATEMENT", "binary-log",
		"binlog_format is STATEMENT, with which the server refuses what is written at READ COMMITTED.", "Set binlog_format = ROW.")
	c.Advice(on("log_bin") && f.settings["sync_binlog"] != "1", "binary-log",
		"sync_binlog is "+f.settings["sync_binlog"]+": when the machine fails, replicas may lack what was committed, and a failover to one loses it.",
		"Set sync_binlog = 1.")
}

// checkLoad looks at what other clients do to the server.
func checkLoad(c *storekit.Checkup, f *facts) {
	if most, err := strconv.ParseInt(f.settings["max_connections"], 10, 64); err == nil {
		c.Connections(f.connected, most)
	}
	open := time.Duration(f.oldest) * time.Second
	c.Advice(open > storekit.LongOpen, "transactions",
		fmt.Sprintf("A transaction has been open for %v: until it ends, no deleted row is removed, and calls become slower.", open),
		"Find it: SELECT * FROM information_schema.innodb_trx ORDER BY trx_started.")
	c.Unchecked(f.oldest < 0, "transactions", "This user does not see how long transactions of other users have been open.",
		"GRANT PROCESS ON *.* to it, or have Check run by another user.")
}

// checkTables looks at the store's own tables: whether they are complete, and whether their
// fences are ahead of the clock.
func checkTables(c *storekit.Checkup, f *facts, n namer) {
	if !c.Version(int(f.version), version, "Run mysqlstore.Migrate, or dibs migrate.") {
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
	c.Danger(len(wrong) > 0, "tables", "These tables are not InnoDB: "+strings.Join(wrong, ", ")+". They have no transactions, and no locks on rows.",
		"ALTER TABLE … ENGINE = InnoDB.")
	c.Danger(len(missing) > 0, "tables", "These indexes are missing: "+strings.Join(missing, ", ")+". Calls fail, or read whole tables.",
		"Make them as mysqlstore.Migrations prints them.")
	c.Fence(f.fence, f.clock.Shows)
}
