//go:build nightly

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// leaseServer is dibs serve in a process of its own.
type leaseServer struct {
	*process
	t    *testing.T
	addr string
}

func startLeaseServer(t *testing.T, store string) *leaseServer {
	t.Helper()
	s := &leaseServer{t: t, addr: servertest.Addr(t)}
	s.process = startWith(t, []string{"DIBS_STORE=" + store}, "serve", "--listen", s.addr)
	testkit.Eventually(t, "it serves", func() bool {
		resp, err := http.Get("http://" + s.addr + "/healthz")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	return s
}

// leaseAnswer is the answer to one claim or settlement.
type leaseAnswer struct {
	State, Fence string
	Attempt      int
}

func (a leaseAnswer) fence() uint64 {
	n, _ := strconv.ParseUint(a.Fence, 10, 64)
	return n
}

// call makes a call with one element.
func (s *leaseServer) call(verb, body string) (a leaseAnswer, err error) {
	resp, err := http.Post("http://"+s.addr+"/v1/"+verb, "application/json", strings.NewReader(body))
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	var all struct{ Answers []leaseAnswer }
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil || len(all.Answers) != 1 {
		return a, fmt.Errorf("%s: %s, %w", resp.Status, text, err)
	}
	return all.Answers[0], nil
}

// wait waits for the key, with the token of that number.
func (s *leaseServer) wait(n int) (leaseAnswer, error) {
	return s.call("claim", fmt.Sprintf(`{"claims":[{"key":"k","token":"%032x","mode":"queue"}],"wait_ms":60000}`, n))
}

// ask is wait that does not wait.
func (s *leaseServer) ask(n int) leaseAnswer {
	s.t.Helper()
	a, err := s.call("claim", fmt.Sprintf(`{"claims":[{"key":"k","token":"%032x","mode":"queue"}]}`, n))
	testkit.Must(s.t, err)
	return a
}

func (s *leaseServer) release(n int) {
	s.t.Helper()
	_, err := s.call("settle", fmt.Sprintf(`{"settlements":[{"key":"k","token":"%032x"}]}`, n))
	testkit.Must(s.t, err)
}

// waiters waits until that many clients wait.
func (s *leaseServer) waiters(n int) {
	s.t.Helper()
	testkit.Eventually(s.t, fmt.Sprintf("%d wait", n), func() bool {
		resp, err := http.Get("http://" + s.addr + "/v1/keys")
		testkit.Must(s.t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		testkit.Must(s.t, err)
		return strings.Contains(string(text), fmt.Sprintf(`"waiters":%d`, n))
	})
}

// TestAServerEndsUnderAWaiter: a client waits at a server, which ends. The key becomes free before
// the client has asked another server. No client that came after it gets the key first.
func TestAServerEndsUnderAWaiter(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(*testing.T) string{
		"redis":    func(t *testing.T) string { return servertest.Redis(t, nil).URL() },
		"postgres": ownSchema,
		"mariadb":  func(t *testing.T) string { return ownPrefix(t, mariadb().URL()) },
		"sqlite":   func(t *testing.T) string { return "sqlite:" + t.TempDir() + "/dibs.db" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := store(t)
			if code, _, stderr := run(t, "migrate", "--store", url); code != 0 {
				t.Fatal(stderr)
			}
			for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
				a, b := startLeaseServer(t, url), startLeaseServer(t, url)
				if got := b.ask(1); got.State != "granted" {
					t.Fatalf("the holder: %+v", got)
				}
				cut := make(chan struct{})
				go func() { defer close(cut); _, _ = a.wait(2) }()
				b.waiters(1)
				next := make(chan leaseAnswer, 1)
				go func() {
					got, err := b.wait(3)
					testkit.Check(t, err)
					next <- got
				}()
				b.waiters(2)
				a.signal(t, signal)
				<-cut
				<-a.done
				b.release(1)
				first, err := b.wait(2)
				testkit.Must(t, err)
				b.release(2)
				second := <-next
				b.release(3)
				// A grant waits for its client for a second. If this machine paused for longer, the next
				// client was granted the key after that grant had expired.
				if paused := second.Attempt == 2; first.State != "granted" || second.State != "granted" || (first.fence() < second.fence()) == paused {
					t.Errorf("%v: the first got %+v, the next %+v", signal, first, second)
				}
			}
		})
	}
}
