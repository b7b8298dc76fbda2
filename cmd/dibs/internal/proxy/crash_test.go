//go:build unix

package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

func TestMain(m *testing.M) { testkit.Main(m, testkit.Children{"proxy": serveChild}) }

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
type stopping struct {
	dibs.Store
	point string
}

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
	if s.point != point {
		return
	}
	errs := make([]error, 1)
	if err := s.Renew(ctx, []store.Renewal{{Key: key, Token: token, TTL: time.Millisecond}}, errs); err != nil || errs[0] != nil {
		fmt.Fprintln(os.Stderr, "the lease could not be shortened:", err, errs[0])
		os.Exit(1)
	}
	failpoint.Reach(point)
}

// serveChild is a proxy that prints its URL, and serves until it is killed at a point. Its arguments
// are that point, the path of its store, and its flags.
func serveChild(args []string) error {
	point, path, flags := args[0], args[1], args[2:]
	fs := pflag.NewFlagSet("dibs proxy", pflag.ContinueOnError)
	Bind(fs)
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
	client, err := dibs.New(stopping{store, point}, nil)
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
				testkit.Must(t, err)
				next := startOn(t, store, up, "", flags[2:]...)
				var res *http.Response
				var body string
				testkit.Eventually(t, "the lease of the killed proxy ends", func() bool {
					res, body = send(t, next.url, request)
					return res.Header.Get("Retry-After") == ""
				})
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
	child = failpoint.Start(t, point, testkit.Child("proxy", append([]string{point, path}, flags...)...))
	return child.Says(), child
}
