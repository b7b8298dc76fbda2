package peers

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/torture"
)

// etcdModule is the server, which is built in a module of its own: nothing else compiles it.
const etcdModule = "go.etcd.io/etcd/server/v3@v3.7.3"

const etcdMain = `package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
`

// EtcdServer builds an etcd with Go and starts it with its default settings, as one member, with a
// clock, or nil for that of the host.
func EtcdServer(owner servertest.Owner, clock *servertest.Clock) *servertest.EtcdServer {
	owner.Helper()
	dir, err := os.MkdirTemp("", "dibs-etcd-")
	if err != nil {
		owner.Fatalf("making a folder for etcd: %v", err)
	}
	owner.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // it may run as another user
		owner.Fatalf("making a folder for etcd: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(etcdMain), 0o600); err != nil {
		owner.Fatalf("building etcd: %v", err)
	}
	for _, args := range [][]string{{"mod", "init", "etcd"}, {"get", etcdModule}, {"mod", "tidy"}, {"build", "-o", "etcd", "."}} {
		build := exec.Command("go", args...)
		build.Dir, build.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
		if out, err := build.CombinedOutput(); err != nil {
			owner.Fatalf("building etcd: go %v: %v\n%s", args, err, out)
		}
	}
	return servertest.Etcd(owner, &servertest.EtcdOptions{Program: filepath.Join(dir, "etcd"), Sync: true, Clock: clock})
}

// DialEtcd connects to the etcd at a URL, within that time.
func DialEtcd(url string, within time.Duration) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{url}, DialTimeout: within, Logger: zap.NewNop()})
}

// EtcdMutex is a concurrency.Mutex for each lock, of one session for all. The caller calls end.
func EtcdMutex(c *clientv3.Client, ttl time.Duration) (l torture.Locker, end func() error, err error) {
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(ttl/time.Second)))
	if err != nil {
		return nil, nil, err
	}
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		m := concurrency.NewMutex(s, "/mutex/"+key)
		return &torture.Held{Unlock: func() error { return m.Unlock(context.Background()) }}, m.Lock(ctx)
	}), s.Close, nil
}

// OpenEtcd connects to the etcd at a URL. Its lock is a concurrency.Mutex of a session for each lock,
// and the fence is the revision. The caller calls end.
func OpenEtcd(url string, ttl time.Duration) (l torture.Locker, end func() error, err error) {
	c, err := DialEtcd(url, ttl)
	if err != nil {
		return nil, nil, err
	}
	return torture.LockFunc(func(ctx context.Context, key string) (*torture.Held, error) {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(int(ttl/time.Second)))
		if err != nil {
			return nil, err
		}
		m := concurrency.NewMutex(s, "/trial/"+key)
		if err := m.Lock(ctx); err != nil {
			_ = s.Close() // if that fails, the key ends with its session
			return nil, err
		}
		return &torture.Held{Lost: s.Ctx(), Fence: uint64(m.Header().Revision), Unlock: func() error {
			return errors.Join(m.Unlock(context.Background()), s.Close())
		}}, nil
	}), c.Close, nil
}
