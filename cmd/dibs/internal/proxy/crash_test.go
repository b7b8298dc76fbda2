//go:build unix

package proxy

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/sqlitestore"
	"github.com/dibs-go/dibs/store"
)

// asChild in the environment makes the test binary a proxy that is killed at a point. Its
// arguments are the path of its store and its flags; it prints its URL.
const asChild = "DIBS_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) == "" {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, serveChild(os.Args[1], os.Args[2:]))
	os.Exit(1)
}

// The points at which a proxy is killed. Between the second and the third the origin
// runs.
const (
	beforeClaim  = "before the claim"
	afterClaim   = "after the claim"
	beforeSettle = "before the settlement"
	afterSettle  = "after the settlement"
)

// stopping is a store that stops its process at a point. It ends the process's lease first,
// so that the test does not wait for it.
type stopping struct{ dibs.Store }

func (s stopping) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	failpoint.Reach(beforeClaim)
	err := s.Store.Claim(ctx, claims, answers)
	for _, c := range claims {
		s.reach(ctx, afterClaim, c.Key, c.Token)
	}
	return err
}

func (s stopping) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	for _, one := range settlements {
		s.reach(ctx, beforeSettle, one.Key, one.Token)
	}
	err := s.Store.Settle(ctx, settlements, errs)
	failpoint.Reach(afterSettle)
	return err
}

// reach ends the lease and stops, if this is the point.
func (s stopping) reach(ctx context.Context, point string, key dibs.Key, token store.Token) {
	if os.Getenv(asChild) != point {
		return
	}
	errs := make([]error, 1)
	if err := s.Renew(ctx, []store.Renewal{{Key: key, Token: token, TTL: time.Millisecond}}, errs); err != nil || errs[0] != nil {
		fmt.Fprintln(os.Stderr, "the lease could not be shortened:", err, errs[0])
		os.Exit(1)
	}
	failpoint.Reach(point)
}

// serveChild serves until the process is killed.
func serveChild(path string, flags []string) error {
	fs := pflag.NewFlagSet("dibs proxy", pflag.ContinueOnError)
	new(Config).Bind(fs)
	if err := fs.Parse(flags); err != nil {
		return err
	}
	config, err := (&Source{Flags: fs, Getenv: os.Getenv}).Load()
	if err != nil {
		return err
	}
	store, err := sqlitestore.Open(path, nil)
	if err != nil {
		return err
	}
	client, err := dibs.New(stopping{store}, nil)
	if err != nil {
		return err
	}
	server, err := New(config, client, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	return server.Serve(context.Background(), l, nil, nil)
}

// TestKilled: a proxy is killed at each point of a request. The next proxy runs the request if
// the first one cannot have run it, or if the policy is takeover. It replays a stored answer.
// Otherwise it answers that the outcome is unknown.
func TestKilled(t *testing.T) {
	const unknown = "409 outcome-unknown"
	for _, test := range []struct {
		point            string
		ran              int64 // until the kill
		takeover, atMost string
	}{
		{beforeClaim, 0, "200 run 1", "200 run 1"},
		{afterClaim, 0, "200 run 1", unknown},
		{beforeSettle, 1, "200 run 2", unknown},
		{afterSettle, 1, "200 run 1, replayed", "200 run 1, replayed"},
	} {
		for policy, want := range map[string]string{"takeover": test.takeover, "at-most-once": test.atMost} {
			t.Run(test.point+", "+policy, func(t *testing.T) {
				t.Parallel()
				var runs atomic.Int64
				up := origin(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "run %d", runs.Add(1)) })
				path := filepath.Join(t.TempDir(), "dibs.db")
				flags := []string{"--upstream", up, "--lease", "1h", "--on-crash", policy}
				url, child := startChild(t, test.point, path, flags...)
				const request = "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n"
				_, answer := raw(t, url, request)
				child.Await()
				child.Kill()
				if line, err := answer.ReadString('\n'); err == nil {
					t.Fatalf("the killed proxy answered %q", line)
				}
				if n := runs.Load(); n != test.ran {
					t.Errorf("it ran %d times until the kill; want %d", n, test.ran)
				}
				store, err := sqlitestore.Open(path, nil)
				if err != nil {
					t.Fatal(err)
				}
				next := startOn(t, store, up, "", flags[2:]...)
				var res *http.Response
				var body string
				for deadline := time.Now().Add(testkit.Limit); ; {
					res, body = send(t, next.url, request)
					if res.Header.Get("Retry-After") == "" || time.Now().After(deadline) {
						break
					}
				}
				got := fmt.Sprint(res.StatusCode, " ", body)
				if name := problemType(t, body); name != "" {
					got = fmt.Sprint(res.StatusCode, " ", name)
				}
				if res.Header.Get("Idempotent-Replayed") == "true" {
					got += ", replayed"
				}
				if got != want {
					t.Errorf("the successor's answer is %s; want %s", got, want)
				}
			})
		}
	}
}

// startChild starts a proxy that is killed at the point, and returns its URL.
func startChild(t *testing.T, point, path string, flags ...string) (url string, child *failpoint.Child) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{path}, flags...)...)
	cmd.Env = append(os.Environ(), asChild+"="+point)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	cmd.Stdout = w
	child = failpoint.Start(t, point, cmd)
	w.Close()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), child
}
