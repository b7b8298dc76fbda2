//go:build nightly

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/torture"
)

// onEtcd are the contenders on etcd.
var onEtcd = []contender{{
	name: "etcd", module: "go.etcd.io/etcd/client/v3", server: "etcd, one member", start: startEtcd, open: openEtcd,
	promises: "a lock as long as the session's lease; the page says that the lease alone is no mutual exclusion, and that writes must be checked by revision",
	link:     "https://etcd.io/docs/v3.6/learning/why/#notes-on-the-usage-of-lock-and-lease",
	setUp:    "a `Session` of 2 s and a `Mutex` for each lock; the fence is the revision",
	says:     map[string]string{"stop": revoked, "kill": revoked, "cut": revoked, "partition": revoked, "loss": revoked, "restart": revoked},
	tags:     "-tags nightly ",
}}

const revoked = "etcd's page says that the server can revoke a lease while the client still believes in it"

// etcdLocker is a concurrency.Mutex of a session for each lock.
type etcdLocker struct {
	client *clientv3.Client
	ttl    time.Duration
}

func openEtcd(_ context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + url[len("etcd://"):]}, DialTimeout: ttl, Logger: zap.NewNop()})
	if err != nil {
		return nil, nil, err
	}
	return &etcdLocker{c, ttl}, c.Close, nil
}

func (l *etcdLocker) Lock(ctx context.Context, key string) (*torture.Held, error) {
	s, err := concurrency.NewSession(l.client, concurrency.WithTTL(int(l.ttl/time.Second)))
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(s, "/trial/"+key)
	if err := m.Lock(ctx); err != nil {
		_ = s.Close() // if that fails, the key ends with its session
		return nil, err
	}
	return &torture.Held{Lost: s.Ctx(), Fence: uint64(m.Header().Revision), Unlock: func() error {
		err := m.Unlock(context.Background())
		if closed := s.Close(); err == nil {
			err = closed
		}
		return err
	}}, nil
}

// etcdArg as the first argument makes this program an etcd.
const etcdArg = "__trial-etcd"

// etcd is an etcd of one member, in a process of its own.
type etcd struct {
	owner      servertest.Owner
	dir        string
	client, pe string // its addresses
	cmd        *exec.Cmd
	life       io.Closer // it ends when this is closed
}

var _ fault.Server = (*etcd)(nil)

func startEtcd(owner servertest.Owner) *fault.Target {
	dir, err := os.MkdirTemp("", "dibs-etcd-")
	if err != nil {
		owner.Fatalf("making a folder for etcd: %v", err)
	}
	e := &etcd{owner: owner, dir: dir, client: servertest.Addr(owner), pe: servertest.Addr(owner)}
	owner.Cleanup(func() {
		e.Continue()
		e.Kill()
		if err := os.RemoveAll(dir); err != nil {
			owner.Logf("removing the folder of etcd: %v", err)
		}
	})
	e.Restart()
	return &fault.Target{URL: "etcd://" + e.client, Server: e, Durable: true}
}

// Kill ends the server at once.
func (e *etcd) Kill() {
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait() // it says that it was killed
	_ = e.life.Close()
}

// Pause stops the server, and Continue lets it go on.
func (e *etcd) Pause()    { e.signal(syscall.SIGSTOP) }
func (e *etcd) Continue() { e.signal(syscall.SIGCONT) }

func (e *etcd) signal(sig syscall.Signal) {
	if err := e.cmd.Process.Signal(sig); err != nil {
		e.owner.Logf("etcd does not get %v: %v", sig, err)
	}
}

// Restart starts the server on its data, and returns when it answers.
func (e *etcd) Restart() {
	program, err := os.Executable()
	if err != nil {
		e.owner.Fatalf("starting etcd: %v", err)
	}
	e.cmd = exec.Command(program, etcdArg, e.dir, e.client, e.pe)
	e.cmd.Stderr = os.Stderr
	if e.life, err = e.cmd.StdinPipe(); err == nil {
		err = e.cmd.Start()
	}
	if err != nil {
		e.owner.Fatalf("starting etcd: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + e.client}, Logger: zap.NewNop()})
	if err != nil {
		e.owner.Fatalf("starting etcd: %v", err)
	}
	defer c.Close()
	for {
		if _, err = c.Get(ctx, "/"); err == nil {
			return
		}
		if ctx.Err() != nil {
			e.owner.Fatalf("etcd does not answer: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// serveEtcd is the program etcd. It ends when its standard input does.
func serveEtcd(args []string) error {
	if len(args) != 3 {
		return errors.New("etcd needs a folder and two addresses")
	}
	c := embed.NewConfig()
	at := func(addr string) []url.URL { return []url.URL{{Scheme: "http", Host: addr}} }
	c.Dir, c.LogLevel, c.LogOutputs = args[0], "fatal", []string{"stderr"}
	c.ListenClientUrls, c.AdvertiseClientUrls = at(args[1]), at(args[1])
	c.ListenPeerUrls, c.AdvertisePeerUrls = at(args[2]), at(args[2])
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	e.Close()
	return err
}
