//go:build unix

package servertest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/prove/wire"
)

// patroniProgram is Patroni 3. patronictl is beside it.
var patroniProgram = program{names: []string{"patroni"}, pkg: "patroni", service: "patroni"}

// haproxyProgram is HAProxy 2.
var haproxyProgram = program{names: []string{"haproxy"}, places: []string{"/usr/sbin"}, pkg: "haproxy", service: "haproxy"}

// asking is for the health checks of servers, which may be stopped.
var asking = http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// PatroniOptions describes PostgreSQL servers under Patroni. nil and the zero value mean three
// servers, of which two have every commit that is acknowledged.
type PatroniOptions struct {
	// MaxConnections is max_connections; 0: 100.
	MaxConnections int
	// Asynchronous leaves out synchronous_mode, and synchronous_mode_strict with it.
	Asynchronous bool
}

// A PatroniCluster is PostgreSQL servers under Patroni, the etcd in which they agree on a primary,
// and an HAProxy that leads to the primary. Nobody waits for the disk.
type PatroniCluster struct {
	Etcd    *EtcdServer
	Nodes   []*PatroniNode
	proxy   *server
	control string // the path of patronictl
	sync    bool
}

// Patroni starts a cluster that ends with its owner, and returns when it is whole. nil options mean
// the defaults.
func Patroni(owner Owner, o *PatroniOptions) *PatroniCluster {
	owner.Helper()
	o = options(o)
	c := &PatroniCluster{sync: !o.Asynchronous}
	err := c.start(owner, o)
	if err == nil {
		err = c.Await()
	}
	if err == nil {
		err = c.addUser()
	}
	if err != nil {
		owner.Fatalf("starting Patroni: %v", err)
	}
	return c
}

// start starts all processes.
func (c *PatroniCluster) start(owner Owner, o *PatroniOptions) error {
	path, err := patroniProgram.find()
	if err != nil {
		return err
	}
	c.control = filepath.Join(filepath.Dir(path), "patronictl")
	postgres, err := postgresProgram.find()
	if err != nil {
		return err
	}
	if postgres, err = filepath.EvalSymlinks(postgres); err != nil {
		return err
	}
	if c.Etcd, err = newEtcd(owner, nil); err != nil {
		return err
	}
	for i := range 3 {
		n, err := newPatroniNode(owner, c.Etcd, fmt.Sprint("node", i+1), path, filepath.Dir(postgres), o)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, n)
	}
	return c.startProxy(owner)
}

// startProxy starts the HAProxy, as Patroni's documentation sets it up: the health check of a server
// is its Patroni's word that it is the primary.
// https://patroni.readthedocs.io/en/latest/rest_api.html#health-check-endpoints
func (c *PatroniCluster) startProxy(owner Owner) error {
	path, err := haproxyProgram.find()
	if err != nil {
		return err
	}
	s := &server{}
	if err := s.prepare(owner, "haproxy", "haproxy"); err != nil {
		return err
	}
	lines := []string{
		"global", " maxconn 400", " nbthread 1",
		"defaults", " mode tcp", " retries 2", " timeout client 30m", " timeout connect 4s", " timeout server 30m", " timeout check 1s",
		"listen primary", " bind " + s.Addr(), " option httpchk OPTIONS /primary", " http-check expect status 200",
		" default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions",
	}
	for _, n := range c.Nodes {
		lines = append(lines, fmt.Sprintf(" server %s %s check port %s", n.id, n.postgres.addr(), n.port))
	}
	if err := s.write(map[string]string{"haproxy.cfg": strings.Join(lines, "\n") + "\n"}); err != nil {
		return err
	}
	s.ready = s.accepts
	s.command.path, s.command.args, s.command.env = path, []string{"haproxy", "-db", "-f", s.folder.join("haproxy.cfg")}, []string{"PATH=/usr/bin:/bin"}
	c.proxy = s
	return s.begin()
}

// patroniUser is the user of the applications. They must not be superusers, because a superuser takes
// the connections that the server reserves for Patroni.
const patroniUser = "dibs"

func (c *PatroniCluster) addUser() error {
	primary, err := c.Primary()
	if err == nil {
		_, err = primary.Do("CREATE ROLE " + patroniUser + " LOGIN; GRANT ALL ON SCHEMA public TO " + patroniUser)
	}
	return err
}

func urlOfUser(addr string) string {
	return strings.Replace(postgresURL(addr, ""), "postgres@", patroniUser+"@", 1)
}

// URL returns the address of the HAProxy, with a user who may make tables.
func (c *PatroniCluster) URL() string { return urlOfUser(c.proxy.Addr()) }

// HostsURL returns the addresses of all servers.
func (c *PatroniCluster) HostsURL() string {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.postgres.addr())
	}
	return urlOfUser(strings.Join(addrs, ","))
}

// Primary returns the server that is the primary by its Patroni's word, when there is one.
func (c *PatroniCluster) Primary() (primary *PatroniNode, err error) {
	err = await(func() error {
		if primary = c.primary(); primary == nil {
			return errors.New("there is no primary")
		}
		return nil
	})
	return primary, err
}

func (c *PatroniCluster) primary() *PatroniNode {
	i := slices.IndexFunc(c.Nodes, func(n *PatroniNode) bool {
		_, err := n.get("/primary")
		return err == nil
	})
	if i < 0 {
		return nil
	}
	return c.Nodes[i]
}

// TimelineAfter waits until a server was promoted since a timeline, and returns the timeline of then.
func (c *PatroniCluster) TimelineAfter(before int64) (now int64, err error) {
	err = await(func() error {
		primary := c.primary()
		if primary == nil {
			return errors.New("there is no primary")
		}
		rows, err := primary.Do("SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)")
		if err != nil {
			return err
		}
		if now, err = strconv.ParseInt(rows[0][0], 16, 64); err == nil && now <= before {
			err = fmt.Errorf("no server was promoted: %s is the primary since timeline %d", primary.id, now)
		}
		return err
	})
	return now, err
}

// AwaitDemoted returns when a server is not the primary, by its Patroni's word.
func (c *PatroniCluster) AwaitDemoted(n *PatroniNode) error {
	return await(func() error {
		if _, err := n.get("/primary"); err == nil {
			return fmt.Errorf("%s is still the primary", n.id)
		}
		return nil
	})
}

// Switchover makes another server the primary, as patronictl switchover does.
func (c *PatroniCluster) Switchover() error {
	n := c.Nodes[0]
	cmd := exec.Command(c.control, "-c", n.folder.join("patroni.yml"), "switchover", "--force")
	cmd.Dir, cmd.Env = n.folder.path, n.command.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: n.as.credential()}
	out, err := cmd.CombinedOutput()
	if err == nil && !strings.Contains(string(out), "Successfully switched over") {
		err = errors.New("it was refused")
	}
	if err != nil {
		return fmt.Errorf("patronictl switchover: %w\n%s", err, out)
	}
	return nil
}

// Await returns when the HAProxy leads to a primary that all other servers follow, and Patroni would
// promote one of them.
func (c *PatroniCluster) Await() error { return await(c.whole) }

func (c *PatroniCluster) whole() error {
	rows, err := c.Nodes[0].psql(c.proxy.port).query("postgres", "SELECT current_setting('port') WHERE NOT pg_is_in_recovery()")
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return errors.New("the primary is not promoted yet")
	}
	i := slices.IndexFunc(c.Nodes, func(n *PatroniNode) bool { return n.postgres.String() == rows[0][0] })
	primary := c.Nodes[i]
	// The primary's Patroni asks etcd for this. The other answers are from its last look. Before a
	// promotion it may name the standby of the time before.
	cluster, err := primary.get("/cluster")
	if err != nil {
		return err
	}
	if _, err := primary.get("/primary"); err != nil {
		return err
	}
	if c.sync && !strings.Contains(cluster, `"sync_standby"`) {
		return errors.New("the primary has no synchronous standby that may be promoted")
	}
	rows, err = primary.Do("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
	if want := strconv.Itoa(len(c.Nodes) - 1); err == nil && rows[0][0] != want {
		err = fmt.Errorf("%s of %s servers follow the primary", rows[0][0], want)
	}
	return err
}

// endPostgres ends a PostgreSQL at once that is not a child of this process, nor of its Patroni.
func endPostgres(data string) error {
	pid := postmaster(data)
	if pid == 0 || ended(pid) {
		return nil
	}
	if err := send(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	if err := awaitStop(pid); err != nil {
		return err
	}
	all, err := descendants(pid)
	if err != nil {
		return err
	}
	all = append(all, pid)
	for _, p := range all {
		if err := send(p, syscall.SIGKILL); err != nil {
			return err
		}
	}
	for _, p := range all {
		if err := awaitEnd(p); err != nil {
			return err
		}
	}
	return nil
}

// postmaster returns the process of the server that runs on a data folder; 0: none.
func postmaster(data string) int {
	file, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(file), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		return 0
	}
	// The number may be another process's by now.
	if at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil || at != data {
		return 0
	}
	return pid
}

// A PatroniNode is a PostgreSQL and its Patroni, of a PatroniCluster. Its methods are about the
// Patroni, which is not a parent of the PostgreSQL: they live without each other.
type PatroniNode struct {
	server
	// Link is the way from Patroni to etcd.
	Link     *wire.Wire
	id       string
	bin      string // the folder of PostgreSQL's programs
	postgres *port
}

// newPatroniNode makes the node's folder, configures it and starts its Patroni, which starts the
// PostgreSQL.
func newPatroniNode(owner Owner, etcd *EtcdServer, id, path, bin string, o *PatroniOptions) (*PatroniNode, error) {
	n := &PatroniNode{id: id, bin: bin}
	err := n.prepare(owner, "patroni of "+id, "postgres")
	if err != nil {
		return nil, err
	}
	if n.postgres, err = reservePort(); err != nil {
		return nil, err
	}
	owner.Cleanup(n.postgres.release)
	n.Link = NewWire(owner, etcd.Addr())
	config, err := json.Marshal(n.config(o)) // which is YAML, too
	if err != nil {
		return nil, err
	}
	if err := n.write(map[string]string{"patroni.yml": string(config)}); err != nil {
		return nil, err
	}
	guard, err := watchScript(`kill -9 "$(head -n 1 '` + n.folder.join("data/postmaster.pid") + `')"`)
	if err != nil {
		return nil, err
	}
	owner.Cleanup(func() {
		n.Kill()
		if err := endPostgres(n.folder.join("data")); err != nil {
			owner.Logf("ending the PostgreSQL of %s: %v", id, err)
		}
		guard.end()
	})
	n.ready = n.answering("/liveness")
	n.command.path, n.command.args = path, []string{"patroni", n.folder.join("patroni.yml")}
	n.command.env = []string{"LC_ALL=C.UTF-8", "TZ=UTC", "HOME=" + n.folder.path, "PATH=" + bin + ":/usr/bin:/bin"}
	return n, n.begin()
}

// config returns the configuration of the node's Patroni. Patroni's defaults for the time are made
// for hosts: a failover takes half a minute. Here the same happens in seconds, and in the same
// proportions: ttl is at least loop_wait and twice retry_timeout.
func (n *PatroniNode) config(o *PatroniOptions) map[string]any {
	type settings = map[string]any
	return settings{
		"scope": "dibs", "name": n.id,
		"restapi": settings{"listen": n.Addr(), "connect_address": n.Addr()},
		// A proxy, so that Patroni does not ask etcd for an address beside the wire.
		"etcd3": settings{"hosts": []string{n.Link.Addr()}, "use_proxies": true},
		"bootstrap": settings{
			"dcs": settings{
				"ttl": 5, "loop_wait": 1, "retry_timeout": 2,
				"synchronous_mode": !o.Asynchronous, "synchronous_mode_strict": !o.Asynchronous,
				"postgresql": settings{
					"use_pg_rewind": true,
					"parameters":    settings{"max_connections": cmp.Or(o.MaxConnections, 100)},
				},
			},
			"initdb": []any{settings{"encoding": "UTF8"}, settings{"locale": "C"}, "no-sync"},
		},
		"postgresql": settings{
			"listen": n.postgres.addr(), "connect_address": n.postgres.addr(),
			"data_dir": n.folder.join("data"), "bin_dir": n.bin, "pgpass": n.folder.join("pgpass"),
			"use_unix_socket": true,
			"authentication": settings{
				"superuser": settings{"username": "postgres"}, "replication": settings{"username": "postgres"},
			},
			"basebackup": []any{settings{"checkpoint": "fast"}, "no-sync"},
			"pg_hba":     []string{"local all,replication all trust", "host all,replication all 127.0.0.1/32 trust"},
			"parameters": settings{
				"unix_socket_directories": n.folder.path, "fsync": "off", "huge_pages": "off", "dynamic_shared_memory_type": "mmap",
				"wal_retrieve_retry_interval": "100ms", "lc_messages": "C", "log_timezone": "UTC", "timezone": "UTC",
			},
		},
	}
}

// Do runs SQL with psql, and returns the rows of the last statement as text.
func (n *PatroniNode) Do(sql string) ([][]string, error) {
	return n.psql(n.postgres).query("postgres", sql)
}

// psql returns a client for what is at a port.
func (n *PatroniNode) psql(at *port) *psql { return newPsql(n.bin, "127.0.0.1", at, "") }

// KillPostgres ends all processes of the PostgreSQL at once (SIGKILL).
func (n *PatroniNode) KillPostgres() {
	n.owner.Helper()
	n.do("killing the PostgreSQL of", func() error { return endPostgres(n.folder.join("data")) })
}
