//go:build unix

package servertest

import (
	"fmt"
	"io"
	"net/http"
)

// etcdProgram is etcd 3.
var etcdProgram = program{names: []string{"etcd"}, pkg: "etcd-server", service: "etcd"}

// An EtcdServer is an etcd of one node.
type EtcdServer struct{ server }

// EtcdOptions describes an etcd. nil and the zero value mean the system's, which does not wait for
// the disk.
type EtcdOptions struct {
	// Program is the path of another program; "": the system's.
	Program string
	// Sync waits for the disk.
	Sync bool
}

// Etcd starts an etcd of one node that ends with its owner, and returns when it answers. nil options
// mean the defaults. Kill loses nothing that was acknowledged.
func Etcd(owner Owner, o *EtcdOptions) *EtcdServer {
	owner.Helper()
	s, err := newEtcd(owner, o)
	return started(owner, s, err)
}

// newEtcd starts an etcd that ends with its owner, and returns when it answers.
func newEtcd(owner Owner, o *EtcdOptions) (_ *EtcdServer, err error) {
	o = options(o)
	path := o.Program
	if path == "" {
		if path, err = etcdProgram.find(); err != nil {
			return nil, err
		}
	}
	s := &EtcdServer{}
	if err := s.prepare(owner, "etcd", "etcd"); err != nil {
		return nil, err
	}
	peers, err := reservePort()
	if err != nil {
		return nil, err
	}
	owner.Cleanup(peers.release)
	s.ready = s.answering("/health")
	s.command.path, s.command.env = path, []string{"PATH=/usr/bin:/bin"}
	s.command.args = []string{
		"etcd", "--name", "etcd", "--data-dir", s.folder.join("data"),
		"--listen-client-urls", s.URL(), "--advertise-client-urls", s.URL(),
		"--listen-peer-urls", "http://" + peers.addr(), "--initial-advertise-peer-urls", "http://" + peers.addr(),
		"--initial-cluster", "etcd=http://" + peers.addr(),
	}
	if !o.Sync {
		s.command.args = append(s.command.args, "--unsafe-no-fsync")
	}
	return s, s.begin()
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
