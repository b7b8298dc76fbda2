package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
)

// etcdModule is the server, which is built in a module of its own: the benchmarks do not require it.
const etcdModule = "go.etcd.io/etcd/server/v3@v3.7.3"

const etcdMain = `package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
`

// etcd is a server with its default settings, one member, and its JSON gateway.
type etcd struct {
	cmd  *exec.Cmd
	dir  string
	addr string
}

func newEtcd(ctx context.Context) (e *etcd, err error) {
	e = &etcd{}
	if e.dir, err = os.MkdirTemp("", "dibs-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.end()
		}
	}()
	if err := os.WriteFile(filepath.Join(e.dir, "main.go"), []byte(etcdMain), 0o600); err != nil {
		return nil, err
	}
	for _, args := range [][]string{{"mod", "init", "etcd"}, {"get", etcdModule}, {"mod", "tidy"}, {"build", "-o", "etcd", "."}} {
		build := exec.CommandContext(ctx, "go", args...)
		build.Dir, build.Env = e.dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go %v: %w\n%s", args, err, out)
		}
	}
	scope := servertest.NewScope()
	defer scope.Close()
	e.addr = servertest.Addr(scope)
	client, peer := "http://"+e.addr, "http://"+servertest.Addr(scope)
	e.cmd = exec.CommandContext(ctx, filepath.Join(e.dir, "etcd"), "--data-dir", filepath.Join(e.dir, "data"), "--log-level", "fatal",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	e.cmd.Stderr = os.Stderr
	if err := e.cmd.Start(); err != nil {
		return nil, err
	}
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if _, err = read(ctx, client+"/health"); err == nil || time.Since(start) > stuck {
			return e, err
		}
	}
}

// rate returns how often the connections lock and unlock names of their own a second. Each has a
// lease, which its locks share.
func (e *etcd) rate(ctx context.Context, d time.Duration) (float64, error) {
	callers, end, err := dialCallers(ctx, "tcp", e.addr, connections)
	if err != nil {
		return 0, err
	}
	defer end()
	leases := make([]string, connections)
	for g, c := range callers {
		var lease struct{ ID string }
		text, err := c.call("/v3/lease/grant", fmt.Sprintf(`{"TTL":%d}`, int((d+stuck).Seconds())), `"ID"`)
		if err == nil {
			err = json.Unmarshal([]byte(text), &lease)
		}
		if err != nil {
			return 0, err
		}
		leases[g] = lease.ID
	}
	return rate(ctx, connections, d, func(_ context.Context, g, i int) error {
		name := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "connection %d, cycle %d", g, i))
		text, err := callers[g].call("/v3/lock/lock", fmt.Sprintf(`{"name":%q,"lease":%q}`, name, leases[g]), `"key"`)
		if err != nil {
			return err
		}
		var lock struct{ Key string }
		if err := json.Unmarshal([]byte(text), &lock); err != nil {
			return err
		}
		_, err = callers[g].call("/v3/lock/unlock", fmt.Sprintf(`{"key":%q}`, lock.Key), `"header"`)
		return err
	})
}

func (e *etcd) end() {
	if e.cmd != nil && e.cmd.Process != nil {
		_ = e.cmd.Process.Signal(syscall.SIGTERM)
		_ = e.cmd.Wait()
	}
	_ = os.RemoveAll(e.dir)
}
