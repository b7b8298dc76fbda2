package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
)

// Names of Findings.
const (
	findVersion     = "version"
	findEviction    = "eviction"
	findMemory      = "memory"
	findPersistence = "persistence"
	findReplication = "replication"
	findPartition   = "partition"
	findClock       = "clock"
	findWakeUps     = "wake-ups"
	findPrefix      = "prefix"
)

const (
	// clockTolerance is how far clocks may be apart, or step, without a word.
	clockTolerance = 500 * time.Millisecond
	// looksAtMost is how many times Check goes on with SCAN on each server.
	looksAtMost = 20
	// nearlyFull is the part of the memory above which there is advice.
	nearlyFull = 0.9
)

var _ dibs.Checker = (*Store)(nil)

// Check implements dibs.Checker. It asks all servers that the client knows (with
// Sentinel, the master) by INFO, CONFIG GET, TIME and a short SCAN, and says what
// it may not ask. It takes a few round trips.
//
// The names of what it finds: version, eviction, memory, persistence,
// replication, partition, clock, wake-ups, prefix.
func (s *Store) Check(ctx context.Context) ([]dibs.Finding, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	servers, err := s.servers(ctx)
	if err != nil {
		return nil, err
	}
	c := &checkup{where: map[dibs.Finding][]string{}, servers: len(servers)}
	for _, v := range servers {
		c.at = v.addr
		s.checkVersion(c, v)
		c.checkEviction(v)
		if v.master() {
			c.checkPersistence(v)
			s.checkReplication(c, v)
		}
		c.checkPartition(v)
		s.clocks.checkSteps(c, v)
	}
	c.at = ""
	checkApart(c, servers)
	if err := s.checkNames(ctx, c, servers); err != nil {
		return nil, err
	}
	s.checkWakeUps(ctx, c)
	return c.findings(), ctx.Err()
}

// checkup gathers findings. What several servers have in common is one.
type checkup struct {
	servers int
	at      string // the server that is looked at, "" for all
	where   map[dibs.Finding][]string
}

func (c *checkup) find(name string, severity dibs.Severity, what, cure string) {
	f := dibs.Finding{Name: name, Severity: severity, What: what, Cure: cure}
	c.where[f] = append(c.where[f], c.at)
}

// findings returns what was found, the worst first.
func (c *checkup) findings() []dibs.Finding {
	all := make([]dibs.Finding, 0, len(c.where))
	for _, f := range slices.SortedFunc(maps.Keys(c.where), func(a, b dibs.Finding) int {
		return cmp.Or(rank(a.Severity)-rank(b.Severity), cmp.Compare(a.Name, b.Name), cmp.Compare(a.What, b.What))
	}) {
		if at := c.where[f]; c.servers > 1 && at[0] != "" {
			f.What = fmt.Sprintf("%s (at %s)", f.What, strings.Join(at, ", "))
		}
		all = append(all, f)
	}
	return all
}

func rank(s dibs.Severity) int {
	return slices.Index([]dibs.Severity{dibs.SeverityDangerous, dibs.SeverityAdvice, dibs.SeverityUnchecked}, s)
}

func (s *Store) checkVersion(c *checkup, v *server) {
	least := oldest
	if s.names.cluster {
		least = oldestCluster
	}
	if got, ok := parseVersion(v.hello["version"]); ok && got.less(least) {
		c.find(findVersion, dibs.SeverityDangerous,
			fmt.Sprintf("The server's version is %s, and nobody has tried the scripts on it.", v.hello["version"]),
			fmt.Sprintf("Run Redis %v or newer, or Valkey.", least))
	}
	if v.hello["mode"] == "cluster" && !s.names.cluster {
		c.find(findVersion, dibs.SeverityDangerous,
			"The server is a node of a Cluster and the client does not know: calls fail for most keys.",
			"Use a client for Clusters, redis+cluster:// as a URL.")
	}
}

func (c *checkup) checkEviction(v *server) {
	limit, limitKnown := v.number("maxmemory", "maxmemory")
	policy, known := v.says("maxmemory-policy", "maxmemory_policy")
	switch {
	case !known:
		c.find(findEviction, dibs.SeverityUnchecked, "Whether the server evicts keys is not known.",
			"Look at maxmemory-policy, which has to be noeviction, or permit INFO.")
	case policy == "noeviction":
	case limitKnown && limit == 0:
		c.find(findEviction, dibs.SeverityAdvice,
			fmt.Sprintf("maxmemory-policy is %s; there is no maxmemory, so nothing is evicted yet.", policy),
			"Set maxmemory-policy to noeviction before somebody sets a maxmemory.")
	default:
		c.find(findEviction, dibs.SeverityDangerous,
			fmt.Sprintf("maxmemory-policy is %s: when its memory is full, the server forgets leases and records, and what they guard runs twice.", policy),
			"Set maxmemory-policy to noeviction, and keep what may be evicted on another server.")
	}
	if used, ok := v.number("", "used_memory"); ok && limit > 0 && policy == "noeviction" && float64(used) > nearlyFull*float64(limit) {
		c.find(findMemory, dibs.SeverityAdvice,
			fmt.Sprintf("%d %% of maxmemory are in use; when it is full, claims are refused.", 100*used/limit),
			"Give the server more memory, or keep records for a shorter time.")
	}
}

func (c *checkup) checkPersistence(v *server) {
	log, logKnown := v.says("appendonly", "")
	if !logKnown {
		var enabled string
		enabled, logKnown = v.info["aof_enabled"]
		log = map[string]string{"1": "yes", "0": "no"}[enabled]
	}
	save, saveKnown := v.says("save", "")
	sync, _ := v.says("appendfsync", "")
	const cure = "Set appendonly to yes, and appendfsync to always where not even a second may be lost."
	switch {
	case !logKnown:
		c.find(findPersistence, dibs.SeverityUnchecked, "Whether the server keeps its data over a restart is not known.",
			"Look at appendonly, which should be yes, or permit INFO.")
	case log == "yes" && sync == "no":
		c.find(findPersistence, dibs.SeverityAdvice, "appendfsync is no: when the machine fails, the leases and records of the last half a minute or so are forgotten.", cure)
	case log == "yes":
	case !saveKnown:
		c.find(findPersistence, dibs.SeverityAdvice, "appendonly is no: after a crash leases and records are forgotten, at best only the latest.", cure)
	case save == "":
		c.find(findPersistence, dibs.SeverityDangerous, "The server keeps nothing on disk: when it is restarted it forgets every lease and record, and what they guard runs twice.", cure)
	default:
		c.find(findPersistence, dibs.SeverityAdvice, "The server writes to disk now and then only: after a crash it forgets the leases and records since the last time.", cure)
	}
	for field, what := range map[string]string{"rdb_last_bgsave_status": "save its data", "aof_last_write_status": "write its log"} {
		if v.info[field] == "err" {
			c.find(findPersistence, dibs.SeverityDangerous, "The server could not "+what+" the last time.", "Look into its log; its disk may be full.")
		}
	}
}

func (s *Store) checkReplication(c *checkup, v *server) {
	has, known := v.number("", "connected_slaves")
	required, _ := v.number("min-replicas-to-write", "")
	want := int64(s.options.Replicas)
	switch {
	case known && want > has:
		c.find(findReplication, dibs.SeverityDangerous,
			fmt.Sprintf("%d replicas have to acknowledge each grant, and there are %d: all claims are refused.", want, has),
			"Start more replicas, or ask for fewer (Options.Replicas, ?replicas=).")
	case want > 0:
	case has > 0 || required > 0 || s.client.Mode() == rueidis.ClientModeSentinel:
		c.find(findReplication, dibs.SeverityAdvice,
			"There are replicas, and nobody waits for them: when the master fails, a grant or a record of its last moment may be lost, and its key granted again.",
			"Have what you guard check the fence, or wait for replicas (Options.Replicas, ?replicas=1).")
	case !known:
		c.find(findReplication, dibs.SeverityUnchecked, "Whether the server has replicas is not known.",
			"If it has, have what you guard check the fence; or permit INFO.")
	}
}

func (c *checkup) checkPartition(v *server) {
	if value, ok := v.config["cluster-allow-reads-when-down"]; ok && value == "yes" && v.hello["mode"] == "cluster" {
		c.find(findPartition, dibs.SeverityAdvice,
			"cluster-allow-reads-when-down is yes: a node that is cut off goes on answering from what it knew, so that a key looks free, or done, which is not.",
			"Set cluster-allow-reads-when-down to no.")
	}
}

// clocks remembers what the servers' clocks showed.
type clocks struct {
	mu   sync.Mutex
	last map[string]sighting
}

// checkSteps compares a server's clock with the last look at it: both it and the
// time here have to have gone on alike.
func (k *clocks) checkSteps(c *checkup, v *server) {
	k.mu.Lock()
	defer k.mu.Unlock()
	last, ok := k.last[v.addr]
	if k.last == nil {
		k.last = map[string]sighting{}
	}
	k.last[v.addr] = v.clock
	if !ok {
		return
	}
	here := v.clock.at.Sub(last.at)
	step := v.clock.shows.Sub(last.shows) - here
	// Clocks that nobody sets run apart by less than a thousandth.
	if step.Abs() > clockTolerance+last.vague+v.clock.vague+here/1000 {
		word := "ahead: leases and records ended that much too early"
		if step < 0 {
			word = "back: leases and records end that much too late"
		}
		c.find(findClock, dibs.SeverityDangerous,
			fmt.Sprintf("In the last %v the server's clock was set %v %s; or this host was suspended.", here.Round(time.Second), step.Abs().Round(100*time.Millisecond), word),
			"Have the clock slewed, not stepped (chronyd, or ntpd -x).")
	}
}

// checkApart compares the servers' clocks with each other.
func checkApart(c *checkup, servers []*server) {
	var apart time.Duration
	var a, b *server
	for i, v := range servers {
		for _, w := range servers[:i] {
			d := v.clock.shows.Sub(w.clock.shows) - v.clock.at.Sub(w.clock.at)
			if d = d.Abs() - v.clock.vague - w.clock.vague; d > apart {
				apart, a, b = d, w, v
			}
		}
	}
	if apart > clockTolerance {
		c.find(findClock, dibs.SeverityDangerous,
			fmt.Sprintf("The clocks of %s and %s are %v apart: when one takes the other's place, leases end that much too early or too late.", a.addr, b.addr, apart.Round(time.Millisecond)),
			"Keep all servers' clocks by NTP.")
	}
}

// checkNames looks at some of the names that begin as ours: whether they are,
// and whether the fences among them are ahead of the clock.
func (s *Store) checkNames(ctx context.Context, c *checkup, servers []*server) error {
	foreign := 0
	for _, v := range servers {
		if !v.master() {
			continue
		}
		for cursor, n := uint64(0), 0; n < looksAtMost; n++ {
			scan, err := v.client.Do(ctx, v.client.B().Scan().Cursor(cursor).Match(s.options.Prefix+":*").Count(512).Build()).AsScanEntry()
			if err != nil {
				return explain(err)
			}
			for _, name := range scan.Elements {
				switch {
				case s.names.isFence(name):
					c.at = v.addr
					if err := c.checkFence(ctx, v, name); err != nil {
						return err
					}
					c.at = ""
				case !s.names.isOurs(name):
					foreign++
				}
			}
			if cursor = scan.Cursor; cursor == 0 {
				break
			}
		}
	}
	if foreign > 0 {
		c.find(findPrefix, dibs.SeverityAdvice,
			fmt.Sprintf("%d names begin with %s: and are not ours: another program has the same prefix, and may overwrite what is.", foreign, s.options.Prefix),
			"Choose another Options.Prefix (?prefix=).")
	}
	return nil
}

// checkFence compares a fence with the clock, ahead of which it is only when that
// was set back: nobody grants a million times a second.
func (c *checkup) checkFence(ctx context.Context, v *server, name string) error {
	fence, err := v.client.Do(ctx, v.client.B().Get().Key(name).Build()).AsInt64()
	switch {
	case rueidis.IsRedisNil(err):
		return nil
	case err != nil:
		return explain(err)
	}
	now := v.clock.shows.Add(time.Since(v.clock.at))
	if ahead := time.UnixMicro(fence).Sub(now); ahead > clockTolerance {
		c.find(findClock, dibs.SeverityDangerous,
			fmt.Sprintf("The highest fence is %v ahead of the server's clock, which was set back: leases from before end that much too late, and fences would fall if the server lost its data now.", ahead.Round(time.Second)),
			"Put the clock right, and have it slewed, not stepped (chronyd, or ntpd -x).")
	}
	return nil
}

// checkWakeUps finds out whether this process can be told that its turn has come.
func (s *Store) checkWakeUps(ctx context.Context, c *checkup) {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var heard atomic.Bool
	ctx = rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) {
		heard.Store(true)
		cancel()
	})
	channel := s.names.channel("{000}:", "check")
	var err error
	if s.names.cluster {
		err = s.client.Receive(ctx, s.client.B().Ssubscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {})
		_ = s.client.Do(whole, s.client.B().Sunsubscribe().Channel(channel).Build()).Error() // others use the connection too
	} else {
		_ = s.client.Dedicated(func(own rueidis.DedicatedClient) error {
			err = own.Receive(ctx, own.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {})
			return nil
		})
	}
	if !heard.Load() {
		c.find(findWakeUps, dibs.SeverityAdvice,
			fmt.Sprintf("The server does not let us subscribe: waiters find out that their turn has come only by asking, up to a second later (%v).", err),
			"Give the user the right to subscribe to channels "+s.options.Prefix+":*, see the README of redisstore.")
	}
}
