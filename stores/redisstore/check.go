package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// Names of Findings, beside "product".
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
	findRights      = "rights"
	findWrites      = "writes"
)

const (
	// maxScans bounds the SCAN calls of Check on each server.
	maxScans = 20
	// nearlyFull is the share of maxmemory from which Check warns.
	nearlyFull = 0.9
)

var _ store.Checker = (*Store)(nil)

// Check implements store.Checker. It asks every server that the client knows (with
// Sentinel, the master) with INFO, CONFIG GET, TIME and a short SCAN, and reports what it
// may not ask. It takes a few round trips.
//
// The names of its findings: product, version, eviction, memory, persistence, replication,
// partition, clock, wake-ups, prefix, rights, writes.
func (s *Store) Check(ctx context.Context) ([]store.Finding, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	servers, err := s.servers(ctx)
	if err != nil {
		return nil, err
	}
	c := &checkup{where: map[store.Finding][]string{}, servers: len(servers)}
	for _, v := range servers {
		c.look(v.addr)
		c.Add(product.Redis.Meet(v.info).Findings()...)
		s.checkVersion(c, v)
		c.checkEviction(v)
		if v.master() {
			c.checkPersistence(v)
			s.checkReplication(c, v)
		}
		c.checkPartition(v)
		if v.timed {
			clock, _ := s.clocks.LoadOrStore(v.addr, &storekit.Clock{})
			clock.(*storekit.Clock).Check(&c.Checkup, v.clock)
		} else {
			c.Unchecked(true, findClock, "This user may not ask for the server's time, so it is unknown whether the clock was set.",
				"Allow it to: ACL SETUSER … +time.")
		}
	}
	c.look("")
	checkApart(c, slices.DeleteFunc(slices.Clone(servers), func(v *server) bool { return !v.timed }))
	if err := s.checkNames(ctx, c, servers); err != nil {
		return nil, err
	}
	if err := storekit.Probe(ctx, s); errors.Is(err, ErrUnauthorized) {
		// It says nothing of the user of the programs, who needs more rights.
		c.Unchecked(true, findRights,
			fmt.Sprintf("This user may not take leases, so it is unknown whether the programs that use the store may, and may subscribe (%v).", err),
			"Have Check run by the user of those programs, or give this user the rights that the README of redisstore lists.")
		return c.findings(), ctx.Err()
	} else if err != nil {
		return nil, err
	}
	if err := s.checkRights(ctx); errors.Is(err, ErrUnauthorized) {
		c.Danger(true, findRights,
			fmt.Sprintf("This user may take leases, but lacks another right: calls fail once a key is waited for (%v).", err),
			"Give it the rights that the README of redisstore lists.")
	} else if err != nil {
		return nil, err
	} else if err := storekit.Try(ctx, s); errors.Is(err, ErrReadOnly) || errors.Is(err, store.ErrFull) {
		c.Danger(true, findWrites, fmt.Sprintf("The server refuses claims (%v).", err), "Do what the error says; until then nothing is granted.")
	} else if err != nil && !errors.Is(err, ErrNotReplicated) { // see checkReplication
		return nil, err
	}
	s.checkWakeUps(ctx, c)
	return c.findings(), ctx.Err()
}

// checkup collects findings. A finding of several servers is one finding.
type checkup struct {
	storekit.Checkup // of the server that is checked now
	at               string
	servers          int
	where            map[store.Finding][]string
}

// look begins to check a server, "" for all.
func (c *checkup) look(addr string) {
	for _, f := range c.Findings() {
		c.where[f] = append(c.where[f], c.at)
	}
	c.Checkup, c.at = storekit.Checkup{}, addr
}

// findings returns the findings, the worst first.
func (c *checkup) findings() []store.Finding {
	c.look("")
	all := make([]store.Finding, 0, len(c.where))
	for _, f := range slices.SortedFunc(maps.Keys(c.where), func(a, b store.Finding) int {
		return cmp.Or(a.Compare(b), cmp.Compare(a.Name, b.Name), cmp.Compare(a.What, b.What))
	}) {
		if at := c.where[f]; c.servers > 1 && at[0] != "" {
			f.What = fmt.Sprintf("%s (at %s)", f.What, strings.Join(at, ", "))
		}
		all = append(all, f)
	}
	return all
}

func (s *Store) checkVersion(c *checkup, v *server) {
	least := oldest
	if s.names.cluster {
		least = oldestCluster
	}
	if got, ok := parseVersion(v.hello["version"]); ok && got.less(least) {
		c.Danger(true, findVersion,
			fmt.Sprintf("The server's version is %s; the scripts are not tested with it.", v.hello["version"]),
			fmt.Sprintf("Run Redis %v or newer, or Valkey.", least))
	}
	c.Danger(v.hello["mode"] == "cluster" && !s.names.cluster, findVersion,
		"The server is a node of a Cluster, but the client is not a Cluster client: calls fail for most keys.",
		"Use a Cluster client: redis+cluster:// in the URL.")
}

func (c *checkup) checkEviction(v *server) {
	limit, limitKnown := v.number("maxmemory", "maxmemory")
	policy, known := v.setting("maxmemory-policy", "maxmemory_policy")
	switch {
	case !known:
		c.Unchecked(true, findEviction, "It is unknown whether the server evicts keys.",
			"Check that maxmemory-policy is noeviction, or allow INFO.")
	case policy == "noeviction":
	case limitKnown && limit == 0:
		c.Advice(true, findEviction,
			fmt.Sprintf("maxmemory-policy is %s. Nothing is evicted yet, because maxmemory is not set.", policy),
			"Set maxmemory-policy to noeviction before you set maxmemory.")
	default:
		c.Danger(true, findEviction,
			fmt.Sprintf("maxmemory-policy is %s: when the memory is full, the server drops leases and records, and the work they protect runs twice.", policy),
			"Set maxmemory-policy to noeviction, and use another server for caches.")
	}
	if used, ok := v.number("", "used_memory"); ok && limit > 0 && policy == "noeviction" && float64(used) > nearlyFull*float64(limit) {
		c.Advice(true, findMemory,
			fmt.Sprintf("%d %% of maxmemory are in use. When it is full, claims are refused.", 100*used/limit),
			"Give the server more memory, or shorten the retention of records.")
	}
}

func (c *checkup) checkPersistence(v *server) {
	log, logKnown := v.setting("appendonly", "")
	if !logKnown {
		var enabled string
		enabled, logKnown = v.info["aof_enabled"]
		log = map[string]string{"1": "yes", "0": "no"}[enabled]
	}
	save, saveKnown := v.setting("save", "")
	sync, _ := v.setting("appendfsync", "")
	const cure = "Set appendonly to yes, and appendfsync to always if the last second must not be lost."
	switch {
	case !logKnown:
		c.Unchecked(true, findPersistence, "It is unknown whether the server keeps its data over a restart.",
			"Check that appendonly is yes, or allow INFO.")
	case log == "yes" && sync == "no":
		c.Advice(true, findPersistence, "appendfsync is no: when the machine fails, the leases and records of about the last 30 seconds are lost.", cure)
	case log == "yes":
	case !saveKnown:
		c.Advice(true, findPersistence, "appendonly is no: a crash loses leases and records, at best only the latest.", cure)
	case save == "":
		c.Danger(true, findPersistence, "The server keeps nothing on disk: a restart loses every lease and record, and the work they protect runs twice.", cure)
	default:
		c.Advice(true, findPersistence, "The server saves its data from time to time only: a crash loses the leases and records since the last save.", cure)
	}
	for field, what := range map[string]string{"rdb_last_bgsave_status": "save its data", "aof_last_write_status": "write its log"} {
		c.Danger(v.info[field] == "err", findPersistence, "The server failed to "+what+" the last time.", "Read the server's log; its disk may be full.")
	}
}

func (s *Store) checkReplication(c *checkup, v *server) {
	has, known := v.number("", "connected_slaves")
	required, _ := v.number("min-replicas-to-write", "")
	want := int64(s.options.Replicas)
	switch {
	case known && want > has:
		c.Danger(true, findReplication,
			fmt.Sprintf("%d replicas must acknowledge each grant, but there are %d: all claims are refused.", want, has),
			"Start more replicas, or require fewer (Options.Replicas, ?replicas=).")
	case want > 0:
	case has > 0 || required > 0 || s.client.Mode() == rueidis.ClientModeSentinel:
		c.Advice(true, findReplication,
			"There are replicas, but grants do not wait for them: when the master fails, its last grants and records may be lost, and their keys granted again.",
			"Check the fence in the system that you protect, or wait for replicas (Options.Replicas, ?replicas=1).")
	case !known:
		c.Unchecked(true, findReplication, "It is unknown whether the server has replicas.",
			"If it has, check the fence in the system that you protect; or allow INFO.")
	}
}

func (c *checkup) checkPartition(v *server) {
	if value, ok := v.config["cluster-allow-reads-when-down"]; ok && value == "yes" && v.hello["mode"] == "cluster" {
		c.Advice(true, findPartition,
			"cluster-allow-reads-when-down is yes: a node that is cut off answers with old data, so a key may look free or done when it is not.",
			"Set cluster-allow-reads-when-down to no.")
	}
}

// checkApart compares the servers' clocks with each other.
func checkApart(c *checkup, servers []*server) {
	var apart time.Duration
	var a, b *server
	for i, v := range servers {
		for _, w := range servers[:i] {
			d := time.Duration(v.clock.Shows-w.clock.Shows)*time.Microsecond - v.clock.At.Sub(w.clock.At)
			if d = d.Abs() - v.clock.Vague - w.clock.Vague; d > apart {
				apart, a, b = d, w, v
			}
		}
	}
	if apart > storekit.ClockTolerance {
		c.Danger(true, findClock,
			fmt.Sprintf("The clocks of %s and %s differ by %v: when one server replaces the other, leases end too early or too late by that time.", a.addr, b.addr, apart.Round(time.Millisecond)),
			"Synchronize all servers' clocks with NTP.")
	}
}

// checkNames looks at a sample of the names under the prefix: for names of other
// programs, and for fences ahead of the clock.
func (s *Store) checkNames(ctx context.Context, c *checkup, servers []*server) error {
	foreign := 0
	for _, v := range servers {
		if !v.master() {
			continue
		}
		for cursor, n := uint64(0), 0; n < maxScans; n++ {
			scan, err := v.client.Do(ctx, v.client.B().Scan().Cursor(cursor).Match(s.options.Prefix+":*").Count(512).Build()).AsScanEntry()
			if err != nil {
				return explain("SCAN", err)
			}
			for _, name := range scan.Elements {
				switch {
				case s.names.isFence(name) && !v.timed:
				case s.names.isFence(name):
					c.look(v.addr)
					if err := c.checkFence(ctx, v, name); err != nil {
						return err
					}
					c.look("")
				case !s.names.isOurs(name):
					foreign++
				}
			}
			if cursor = scan.Cursor; cursor == 0 {
				break
			}
		}
	}
	c.Advice(foreign > 0, findPrefix,
		fmt.Sprintf("%d names that begin with %s: are not from dibs: another program uses the same prefix, and may overwrite leases.", foreign, s.options.Prefix),
		"Choose another Options.Prefix (?prefix=).")
	return nil
}

// checkFence compares a fence with the clock. A fence is ahead only if the clock was set
// back, because no client is granted a million leases a second.
func (c *checkup) checkFence(ctx context.Context, v *server, name string) error {
	fence, err := v.client.Do(ctx, v.client.B().Get().Key(name).Build()).AsInt64()
	switch {
	case rueidis.IsRedisNil(err):
		return nil
	case err != nil:
		return explain("GET", err)
	}
	c.Fence(fence, v.clock.Shows+time.Since(v.clock.At).Microseconds())
	return nil
}

// checkWakeUps checks that this process may subscribe.
func (s *Store) checkWakeUps(ctx context.Context, c *checkup) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.options.patience, callLimit))
	defer cancel()
	var subscribed atomic.Bool
	ctx = rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) {
		subscribed.Store(true)
		cancel()
	})
	const group = "{000}:"
	channel := s.names.channel(group, "check")
	var err error
	for range maxMoves {
		addr, server := s.subscriber.nodes.at(group)
		if server == nil {
			err = ErrUnreachable
			break
		}
		l := connectTo(addr, server)
		subscribe := l.B().Subscribe().Channel(channel).Build()
		if s.names.cluster {
			subscribe = l.B().Ssubscribe().Channel(channel).Build()
		}
		err = l.Receive(ctx, subscribe, func(rueidis.PubSubMessage) {})
		s.subscriber.nodes.close(l)
		if !s.subscriber.nodes.heard(group, addr, err) {
			break
		}
	}
	c.Advice(!subscribed.Load(), findWakeUps,
		fmt.Sprintf("The server does not allow subscriptions: waiters poll, and are served up to a second later (%v).", err),
		"Allow the user to subscribe to channels "+s.options.Prefix+":*, see the README of redisstore.")
}
