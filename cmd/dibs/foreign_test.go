//go:build nightly

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
)

// TestForeign: webdis, an HTTP API in C before Redis, is the origin. The clients retry on
// their own: curl, and Python's urllib3. The answer is lost twice, and the effect happens
// once. Without dibs it happens three times.
func TestForeign(t *testing.T) {
	t.Parallel()
	webdis := startWebdis(t)
	p := startProxy(t, webdis, sqliteStore(t))
	bare := servertest.NewWire(t, strings.TrimPrefix(webdis, "http://"))
	guarded := servertest.NewWire(t, strings.TrimPrefix(p.url, "http://"))
	clients := []struct {
		name string
		send func(t *testing.T, url, key, body string) string
	}{
		{"curl", curl},
		{"urllib3", urllib3},
	}
	for _, client := range clients {
		t.Run(client.name, func(t *testing.T) {
			bare.Set(wire.Trouble{LoseReply: 2}, nil)
			if got := client.send(t, "http://"+bare.Addr()+"/", `"a"`, "INCR/bare-"+client.name); got != `{"INCR":3}` {
				t.Errorf("bare, the client got %s", got)
			}
			guarded.Set(wire.Trouble{LoseReply: 2}, nil)
			lost := guarded.Counts().LostReplies
			if got := client.send(t, "http://"+guarded.Addr()+"/", `"`+client.name+`"`, "INCR/"+client.name); got != `{"INCR":1}` {
				t.Errorf("with dibs, the client got %s", got)
			}
			if n := guarded.Counts().LostReplies - lost; n != 2 {
				t.Errorf("%d answers were lost; want 2", n)
			}
			if got := askWebdis(t, webdis+"/GET/"+client.name); got != `{"GET":"1"}` {
				t.Errorf("the origin's own count is %s", got)
			}
			if got := client.send(t, "http://"+guarded.Addr()+"/", `"`+client.name+`-2"`, "INCR/"+client.name); got != `{"INCR":2}` {
				t.Errorf("under another key, the client got %s", got)
			}
		})
	}
}

// foreignPackages are the Debian packages that the programs come from.
var foreignPackages = []string{"webdis", "redis-server", "curl", "python3", "python3-urllib3"}

// python is Debian's own Python, because it finds Debian's packages.
const python = "/usr/bin/python3"

// needForeign installs the programs if root runs the test. Otherwise it fails the test with
// the line that installs them.
func needForeign(t *testing.T) {
	t.Helper()
	if missingProgram() == "" {
		return
	}
	install := "apt-get install -y --no-install-recommends " + strings.Join(foreignPackages, " ")
	if os.Geteuid() == 0 {
		if err := installOnce(install); err != nil {
			t.Fatalf("installing %s failed: %v", missingProgram(), err)
		}
	}
	if name := missingProgram(); name != "" {
		t.Fatalf("%s is missing; on Debian, as root: %s", name, install)
	}
}

// missingProgram returns the name of a program that is not there, or "".
func missingProgram() string {
	for _, name := range []string{"webdis", "redis-server", "curl", python} {
		if _, err := exec.LookPath(name); err != nil {
			return name
		}
	}
	if exec.Command(python, "-c", "import urllib3").Run() != nil {
		return "python3-urllib3"
	}
	return ""
}

var (
	installing sync.Once
	errInstall error
)

// installOnce installs the packages, after an update of apt's lists if that is necessary.
func installOnce(install string) error {
	installing.Do(func() {
		for _, line := range []string{install, "apt-get update", install} {
			cmd := exec.Command("sh", "-c", line)
			// No questions, and no services: the tests start their own.
			cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
			out, err := cmd.CombinedOutput()
			if err == nil && line == install {
				errInstall = nil
				return
			}
			if err != nil {
				errInstall = fmt.Errorf("%s: %w: %s", line, err, out[max(0, len(out)-500):])
			}
		}
	})
	return errInstall
}

// startWebdis starts webdis before a Redis server of its own and returns its URL.
// Both end with the test.
func startWebdis(t *testing.T) string {
	t.Helper()
	needForeign(t)
	dir := t.TempDir()
	redis, web := netip.MustParseAddrPort(servertest.Redis(t, nil).Addr()), netip.MustParseAddrPort(servertest.Addr(t))
	config, err := json.Marshal(map[string]any{
		"redis_host": redis.Addr(), "redis_port": redis.Port(), "database": 0,
		"http_host": web.Addr(), "http_port": web.Port(), "http_max_request_size": 1 << 20,
		"threads": 2, "pool_size": 4, "daemonize": false, "websockets": false,
		"verbosity": 2, "logfile": filepath.Join(dir, "webdis.log"),
	})
	testkit.Must(t, err)
	file := filepath.Join(dir, "webdis.json")
	testkit.Must(t, os.WriteFile(file, config, 0o600))
	runInBackground(t, dir, "webdis", file)
	url := fmt.Sprintf("http://%v", web)
	testkit.Eventually(t, "webdis answers", func() bool {
		body, err := getBody(url + "/PING")
		return err == nil && strings.Contains(body, "PONG")
	})
	return url
}

// askWebdis asks webdis for something that changes nothing, and returns what it says.
func askWebdis(t *testing.T, url string) string {
	t.Helper()
	body, err := getBody(url)
	testkit.Must(t, err)
	return body
}

func getBody(url string) (string, error) {
	res, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

// runInBackground runs a program until the test ends.
func runInBackground(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// curl sends a POST by curl, which retries on its own, and returns what it
// prints: the body of the answer.
func curl(t *testing.T, url, key, body string) string {
	t.Helper()
	return outputOf(t, "curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "60",
		"--retry", "8", "--retry-all-errors", "--retry-delay", "1",
		"--header", "Idempotency-Key: "+key, "--data", body, url)
}

// urllib3Script retries a POST on broken connections and on answers that say when.
const urllib3Script = `
import sys, urllib3
from urllib3.util.retry import Retry
url, key, body = sys.argv[1:]
retry = Retry(total=8, backoff_factor=0.1, allowed_methods=None, status_forcelist=[409, 502, 503])
http = urllib3.PoolManager(retries=retry, timeout=60.0)
answer = http.request("POST", url, body=body.encode(), headers={"Idempotency-Key": key})
sys.stdout.write(answer.data.decode())
`

// urllib3 sends a POST by Python's urllib3, which retries on its own, and
// returns the body of the answer.
func urllib3(t *testing.T, url, key, body string) string {
	t.Helper()
	return outputOf(t, python, "-c", urllib3Script, url, key, body)
}

func outputOf(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		message := ""
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			message = string(e.Stderr)
		}
		t.Fatalf("%s: %v: %s%s", name, err, out, message)
	}
	return string(out)
}
