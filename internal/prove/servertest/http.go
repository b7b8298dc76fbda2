//go:build unix

package servertest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// A gateway is a program that can be in front of a service.
type gateway struct {
	program program
	// around is the configuration before and after that of the test.
	around [2]string
	args   []string // the last one is the path of the configuration
	users  []string
}

var gateways = map[string]gateway{
	"nginx": {
		program: program{names: []string{"nginx"}, places: []string{"/usr/sbin", "/usr/local/sbin"}, pkg: "nginx", service: "nginx"},
		around:  [2]string{"daemon off; worker_processes 1; pid nginx.pid; error_log stderr; events {} http { access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n", "}\n"},
		args:    []string{"nginx", "-e", "stderr", "-p", ".", "-c"},
		users:   []string{"www-data"},
	},
	"caddy": {
		program: program{names: []string{"caddy"}, pkg: "caddy", service: "caddy"},
		around:  [2]string{"{\n\tadmin off\n\tauto_https off\n\tdefault_bind 127.0.0.1\n}\n", ""},
		args:    []string{"caddy", "run", "--adapter", "caddyfile", "--config"},
		users:   []string{"caddy"},
	},
	"haproxy": {
		program: program{names: []string{"haproxy"}, places: []string{"/usr/sbin"}, pkg: "haproxy", service: "haproxy"},
		args:    []string{"haproxy", "-db", "-f"},
		users:   []string{"haproxy"},
	},
}

// A GatewayServer is a gateway of a test: nginx, Caddy or HAProxy.
type GatewayServer struct{ server }

// Gateway starts the gateway of that name ("nginx", "caddy", "haproxy"). config returns its
// configuration for its address; that of nginx stands in its block http. It ends with its owner. It
// returns when the gateway accepts connections.
func Gateway(owner Owner, name string, config func(addr string) string) *GatewayServer {
	owner.Helper()
	s, err := newGateway(owner, name, config)
	return started(owner, s, err)
}

func newGateway(owner Owner, name string, config func(addr string) string) (*GatewayServer, error) {
	g, ok := gateways[name]
	if !ok {
		return nil, fmt.Errorf("%q is not a gateway", name)
	}
	path, err := g.program.find()
	if err != nil {
		return nil, err
	}
	s := &GatewayServer{}
	if err := s.prepare(owner, name, g.users...); err != nil {
		return nil, err
	}
	s.ready = s.accepts
	file := s.folder.join("config")
	s.command.path, s.command.args = path, append(g.args[:len(g.args):len(g.args)], file)
	s.command.env = []string{"PATH=/usr/bin:/bin", "HOME=" + s.folder.path}
	text := g.around[0] + strings.TrimSpace(config(s.Addr())) + "\n" + g.around[1]
	if err := s.write(map[string]string{"config": text}); err != nil {
		return nil, err
	}
	return s, s.begin()
}

// etcdProgram is etcd 3.
var etcdProgram = program{names: []string{"etcd"}, pkg: "etcd-server", service: "etcd"}

// An EtcdServer is a member of an etcd.
type EtcdServer struct {
	server
	peers *port
}

// EtcdOptions describes an etcd. nil and the zero value mean the system's, which does not wait for
// the disk.
type EtcdOptions struct {
	// Program is the path of another program; "": the system's.
	Program string
	// Sync waits for the disk.
	Sync bool
	// Clock is the server's time of day, on x86-64; nil: the host's.
	Clock *Clock
}

// Etcd starts an etcd of one node that ends with its owner, and returns when it answers. nil options
// mean the defaults. Kill loses nothing that was acknowledged.
func Etcd(owner Owner, o *EtcdOptions) *EtcdServer {
	owner.Helper()
	s, err := newEtcd(owner, o)
	return started(owner, s, err)
}

// EtcdMembers is Etcd with that many members.
func EtcdMembers(owner Owner, n int, o *EtcdOptions) []*EtcdServer {
	owner.Helper()
	members, err := newEtcds(owner, n, o)
	return started(owner, members, err)
}

// newEtcd starts an etcd that ends with its owner, and returns when it answers.
func newEtcd(owner Owner, o *EtcdOptions) (*EtcdServer, error) {
	members, err := newEtcds(owner, 1, o)
	if err != nil {
		return nil, err
	}
	return members[0], nil
}

// newEtcds starts the members of an etcd at once, because none answers before most of them run.
func newEtcds(owner Owner, n int, o *EtcdOptions) (members []*EtcdServer, err error) {
	o = options(o)
	path := o.Program
	if path == "" {
		if path, err = etcdProgram.find(); err != nil {
			return nil, err
		}
	}
	var cluster []string
	for i := range n {
		s := &EtcdServer{}
		if err := s.prepare(owner, "etcd", "etcd"); err != nil {
			return nil, err
		}
		if s.peers, err = reservePort(); err != nil {
			return nil, err
		}
		owner.Cleanup(s.peers.release)
		members, cluster = append(members, s), append(cluster, fmt.Sprintf("etcd%d=http://%s", i, s.peers.addr()))
	}
	errs := make([]error, n)
	var all sync.WaitGroup
	for i, s := range members {
		s.ready = s.answering("/health")
		s.command.path, s.command.env = path, append([]string{"PATH=/usr/bin:/bin", "DIBS_CLOCK_GO=1"}, o.Clock.env()...)
		s.command.args = []string{
			"etcd", "--name", fmt.Sprint("etcd", i), "--data-dir", s.folder.join("data"),
			"--listen-client-urls", s.URL(), "--advertise-client-urls", s.URL(),
			"--listen-peer-urls", "http://" + s.peers.addr(), "--initial-advertise-peer-urls", "http://" + s.peers.addr(),
			"--initial-cluster", strings.Join(cluster, ","),
		}
		if !o.Sync {
			s.command.args = append(s.command.args, "--unsafe-no-fsync")
		}
		all.Go(func() { errs[i] = s.begin() })
	}
	all.Wait()
	return members, errors.Join(errs...)
}

// Leads reports whether the member says that it leads.
func (s *EtcdServer) Leads() bool {
	page, err := s.get("/metrics")
	return err == nil && strings.Contains(page, "\netcd_server_is_leader 1\n")
}

// URL returns the server's address: "http://127.0.0.1:4321".
func (s *EtcdServer) URL() string { return "http://" + s.Addr() }

// get returns the answer to a GET of the path, and an error unless it is 200.
func (s *server) get(path string) (body string, err error) {
	resp, err := asking.Get("http://" + s.Addr() + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s of %s: %s", path, s.name, resp.Status)
	}
	all, err := io.ReadAll(resp.Body)
	return string(all), err
}

// answering is ready of a server that answers the path with 200.
func (s *server) answering(path string) func() error {
	return func() error {
		_, err := s.get(path)
		return err
	}
}

// Dibs returns the path of the program dibs of this tree: bin/dibs, which it builds as make build
// does. If the program is up to date, that takes a third of a second.
var Dibs = sync.OnceValues(func() (string, error) {
	said, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/dibs-go/dibs").Output()
	if err != nil {
		return "", fmt.Errorf("looking for the tree of dibs: %w", err)
	}
	tree := strings.TrimSpace(string(said))
	program := filepath.Join(tree, "bin", "dibs")
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(program+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // and so unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	return program, Build(program, filepath.Join(tree, "cmd", "dibs"))
})

// Build builds a program with the flags of make build, so that what it imports is compiled once.
func Build(program, source string) error {
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", source, err, said)
	}
	return nil
}

// A DibsServer is a dibs serve of a test. Store is the URL of its store.
type DibsServer struct {
	server
	Store string
}

// DibsServe starts a dibs serve on a store that ends with its owner, and returns when it answers. "" is
// a SQLite file in its folder.
func DibsServe(owner Owner, store string) *DibsServer {
	owner.Helper()
	s := &DibsServer{}
	path, err := Dibs()
	if err == nil {
		err = s.prepare(owner, "dibs serve")
	}
	if err == nil {
		s.Store = cmp.Or(store, "sqlite:"+s.folder.join("dibs.db"))
		s.ready = s.answering("/healthz")
		s.command.path, s.command.args = path, []string{"dibs", "serve", "--store", s.Store, "--listen", s.Addr()}
		err = s.begin()
	}
	return started(owner, s, err)
}

// URL returns the server's address: "http://127.0.0.1:4321".
func (s *DibsServer) URL() string { return "http://" + s.Addr() }
