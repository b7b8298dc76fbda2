//go:build unix

package servertest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// SentinelOptions describes a master with sentinels. nil and the zero value mean three
// sentinels, a master and one replica.
type SentinelOptions struct {
	// Replicas is the number of replicas. 0: 1.
	Replicas int
	// DownAfter is how long a master may be silent before it counts as down. 0: 2 s. A
	// replica is promoted a second or two later. Set a minute in tests that must not have
	// a failover on a busy machine.
	DownAfter time.Duration
	// Redis are the options of master and replicas; nil: the defaults. ReplicaOf is
	// ignored.
	Redis *RedisOptions
}

// Sentinels are a Redis master, its replicas and their sentinels, of a test.
type Sentinels struct {
	owner     Owner
	name      string
	sentinels []*RedisServer
	servers   []*RedisServer // the first master first
}

// RedisSentinel starts a master, its replicas and sentinels. All end with their owner. It
// returns when the replicas are in step and the sentinels could agree on a failover.
func RedisSentinel(owner Owner, o *SentinelOptions) *Sentinels {
	owner.Helper()
	o = options(o)
	s := &Sentinels{owner: owner, name: "dibs"}
	if err := s.start(o); err != nil {
		owner.Fatalf("starting sentinels: %v", err)
	}
	s.Await()
	return s
}

// start starts master, replicas and sentinels.
func (s *Sentinels) start(o *SentinelOptions) error {
	server := *options(o.Redis)
	server.ReplicaOf = nil
	master, err := newRedis(s.owner, &server)
	if err != nil {
		return err
	}
	replica := server
	replica.ReplicaOf = master
	replicas, err := startAll(s.owner, slices.Repeat([]*RedisOptions{&replica}, cmp.Or(o.Replicas, 1)))
	if err != nil {
		return err
	}
	s.servers = append([]*RedisServer{master}, replicas...)

	silence := cmp.Or(o.DownAfter, 2*time.Second).Milliseconds()
	watch := RedisOptions{Valkey: server.Valkey, TLS: server.TLS, role: redisRole{
		sentinel: true,
		lines: []string{
			fmt.Sprintf("sentinel monitor %s 127.0.0.1 %s 2", s.name, master.port),
			fmt.Sprintf("sentinel down-after-milliseconds %s %d", s.name, silence),
			// After a failed election a failover is tried again after twice this.
			fmt.Sprintf("sentinel failover-timeout %s 2000", s.name),
		},
		// Sentinels find each other in a moment instead of seconds. The first ping
		// comes after one period, and a new master must not count as down by then. The
		// state of a replica is valid for five periods, but is renewed only once a
		// second while the master is down.
		first: []any{"SENTINEL", "DEBUG", "INFO-PERIOD", 100, "PUBLISH-PERIOD", 100, "PING-PERIOD", min(max(silence/3, 250), 500)},
	}}
	if server.Password != "" {
		watch.role.lines = append(watch.role.lines, fmt.Sprintf("sentinel auth-pass %s %s", s.name, quote(server.Password)))
	}
	s.sentinels, err = startAll(s.owner, slices.Repeat([]*RedisOptions{&watch}, 3))
	return err
}

// Name returns the sentinels' name of the master.
func (s *Sentinels) Name() string { return s.name }

// Sentinels returns the sentinels.
func (s *Sentinels) Sentinels() []*RedisServer { return slices.Clone(s.sentinels) }

// Servers returns the master and its replicas; the first was the master at the start.
func (s *Sentinels) Servers() []*RedisServer { return slices.Clone(s.servers) }

// Addrs returns the addresses of the sentinels.
func (s *Sentinels) Addrs() []string { return addrs(s.sentinels) }

// URL returns the addresses of the sentinels with the master's name and the credentials
// of the default user: "redis+sentinel://:secret@127.0.0.1:4321,127.0.0.1:4322/dibs", or
// "rediss+sentinel://" with TLS. The sentinels need no password.
func (s *Sentinels) URL() string {
	return joinedURL("sentinel", s.servers[0].options, s.sentinels, "/"+s.name)
}

// Master returns the master, and waits until the sentinels agree on one.
func (s *Sentinels) Master() *RedisServer {
	s.owner.Helper()
	return s.AwaitMaster(nil)
}

// AwaitMaster waits until the sentinels agree on another master than the given one, and
// returns it.
func (s *Sentinels) AwaitMaster(other *RedisServer) *RedisServer {
	s.owner.Helper()
	var master *RedisServer
	mustAwait(s.owner, "waiting for a master", func() error {
		var err error
		if master, err = s.master(); err == nil && master == other {
			err = fmt.Errorf("the master is still %s", other.name)
		}
		return err
	})
	return master
}

// Await returns when the sentinels agree on the master and know each other and every
// server, and the replicas are in step. All servers must run.
func (s *Sentinels) Await() {
	s.owner.Helper()
	mustAwait(s.owner, "waiting for the sentinels", s.whole)
}

// master returns the server on which the running sentinels agree and that is a master.
func (s *Sentinels) master() (*RedisServer, error) {
	var master *RedisServer
	for _, sentinel := range s.sentinels {
		if !sentinel.serving() {
			continue
		}
		answer, err := sentinel.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.name)
		if err != nil {
			return nil, err
		}
		parts, _ := answer.([]any)
		if len(parts) != 2 {
			return nil, fmt.Errorf("%s knows no master: %v", sentinel.name, answer)
		}
		i := slices.IndexFunc(s.servers, func(server *RedisServer) bool { return server.port.String() == parts[1] })
		switch {
		case i < 0:
			return nil, fmt.Errorf("%s names a foreign master: %v", sentinel.name, answer)
		case master == nil:
			master = s.servers[i]
		case master != s.servers[i]:
			return nil, errors.New("the sentinels do not agree")
		}
	}
	if master == nil {
		return nil, errors.New("no sentinel runs")
	}
	if !master.serving() {
		return master, nil // the sentinels do not know yet
	}
	role, err := master.info("role")
	if err == nil && role != "master" {
		err = fmt.Errorf("%s is not a master yet", master.name)
	}
	return master, err
}

// whole returns nil when Await may return.
func (s *Sentinels) whole() error {
	master, err := s.master()
	if err != nil {
		return err
	}
	for _, server := range s.servers {
		if server == master {
			continue
		}
		if err := server.inStep(); err != nil {
			return fmt.Errorf("%s: %w", server.name, err)
		}
	}
	for _, sentinel := range s.sentinels {
		if err := s.content(sentinel); err != nil {
			return fmt.Errorf("%s: %w", sentinel.name, err)
		}
	}
	return nil
}

// content returns nil when a sentinel knows all servers and would accept any replica as
// the next master.
func (s *Sentinels) content(sentinel *RedisServer) error {
	answer, err := sentinel.Do("SENTINEL", "MASTER", s.name)
	if err != nil {
		return err
	}
	err = shows(answer, map[string]string{
		"flags":               "master",
		"num-slaves":          strconv.Itoa(len(s.servers) - 1),
		"num-other-sentinels": strconv.Itoa(len(s.sentinels) - 1),
	})
	if err != nil {
		return err
	}
	answer, err = sentinel.Do("SENTINEL", "REPLICAS", s.name)
	if err != nil {
		return err
	}
	replicas, _ := answer.([]any)
	for _, replica := range replicas {
		if err := shows(replica, map[string]string{"flags": "slave", "master-link-status": "ok"}); err != nil {
			return err
		}
	}
	_, err = sentinel.Do("SENTINEL", "CKQUORUM", s.name)
	return err
}

// shows returns nil when a sentinel's answer has the wanted values.
func shows(answer any, want map[string]string) error {
	list, _ := answer.([]any)
	got := map[any]any{}
	for pair := range slices.Chunk(list, 2) {
		got[pair[0]] = pair[len(pair)-1]
	}
	for name, value := range want {
		if got[name] != value {
			return fmt.Errorf("%v: %s is %v; want %s", got["name"], name, got[name], value)
		}
	}
	return nil
}
