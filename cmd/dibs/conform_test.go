//go:build unix

package main

import (
	"context"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/idempotency/conform"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// newOrigin starts the kit's origin.
func newOrigin(t *testing.T) *conform.Origin {
	t.Helper()
	origin, err := conform.Listen("127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { origin.Close() })
	return origin
}

// TestConformProxy: the proxy passes every case of the kit. The nightly tests do that over
// every store.
func TestConformProxy(t *testing.T) {
	t.Parallel()
	checkProxy(t, "memory:")
}

// checkProxy: where the store is durable, an answer outlives a proxy that is killed.
func checkProxy(t *testing.T, url string) {
	t.Helper()
	origin := newOrigin(t)
	p := startProxy(t, "http://"+origin.Addr(), url)
	o := conform.Options{Target: p.url, Origin: origin, Profile: conform.Dibs}
	skipped := []string{"key-strict", "missing-refused", "missing-problem", "failed-kept"}
	if url == "memory:" {
		skipped = append(skipped, "restart")
	} else {
		o.Restart = func(context.Context) error {
			p.signal(t, syscall.SIGKILL)
			<-p.done
			startProxy(t, "http://"+origin.Addr(), url, "--listen", strings.TrimPrefix(p.url, "http://"))
			return nil
		}
	}
	conforms(t, &o, skipped...)
}

// TestConformProxyHTTP2: a proxy to an HTTP/2 origin passes every case.
func TestConformProxyHTTP2(t *testing.T) {
	t.Parallel()
	origin := newOrigin(t)
	p := startProxy(t, "h2c://"+origin.Addr(), "memory:")
	// Nothing is written by hand in HTTP/2.
	byHand := []string{"origin-closes", "origin-chunks", "origin-stray", "origin-garbled", "origin-folded"}
	o := conform.Options{Target: p.url, Origin: origin, Profile: conform.Dibs, Skip: byHand}
	conforms(t, &o, append(byHand, "key-strict", "missing-refused", "missing-problem", "failed-kept", "restart")...)
}

// TestConformProxyStrictly: a proxy with every option that is off by default passes every case.
func TestConformProxyStrictly(t *testing.T) {
	t.Parallel()
	origin := newOrigin(t)
	p := startProxy(t, "http://"+origin.Addr(), "memory:", "--require-key", "--keep", "default,5xx", "DIBS_PROXY_STRICT_KEY=true", "DIBS_PROXY_CONFLICT_STATUS=429")
	o := conform.Options{
		Target: p.url, Origin: origin, Profile: conform.Dibs,
		RequireKey: true, StrictKey: true, Keeps5xx: true, ConflictStatus: 429,
	}
	conforms(t, &o, "key-bare", "key-bare-is-quoted", "missing-runs", "key-in-trailer", "failed-runs-again", "restart")
}

// TestConformAPIs: with the fields of docs/reference/http.md the proxy is what the profiles of APIs ask for.
func TestConformAPIs(t *testing.T) {
	t.Parallel()
	rows := regexp.MustCompile("(?m)^\\| .* \\| `(errors: .*)` \\| `([a-z]+)` \\|$").FindAllStringSubmatch(string(testkit.ReadFile(t, "../../docs/reference/http.md")), -1)
	if len(rows) != 3 {
		t.Fatalf("docs/reference/http.md has the fields of %d APIs", len(rows))
	}
	for _, row := range rows {
		fields, profile := row[1], conform.Profile(row[2])
		t.Run(row[2], func(t *testing.T) {
			t.Parallel()
			origin := newOrigin(t)
			config := filepath.Join(t.TempDir(), "dibs.yaml")
			place(t, config, "{"+fields+"}")
			p := startProxy(t, "http://"+origin.Addr(), "memory:", "--config", config)
			r, err := conform.Run(t.Context(), &conform.Options{Target: p.url, Origin: origin, Profile: profile, Timeout: 4 * testkit.Limit})
			testkit.Must(t, err)
			for i := range r.Results {
				if r.Results[i].Outcome == conform.Failed {
					t.Error(r.Results[i].Line())
				}
			}
			if !r.Conforms() {
				t.Error(r.Summary())
			}
		})
	}
}

// conforms runs the kit: all cases pass but these, which are not run.
func conforms(t *testing.T, o *conform.Options, skipped ...string) {
	t.Helper()
	o.Timeout = 4 * testkit.Limit // of which a case waits a quarter for anything
	r, err := conform.Run(t.Context(), o)
	testkit.Must(t, err)
	for i := range r.Results {
		want := conform.Passed
		if slices.Contains(skipped, r.Results[i].Case.ID) {
			want = conform.Skipped
		}
		if r.Results[i].Outcome != want {
			t.Errorf("not %s: %s", want, strings.TrimSuffix(r.Results[i].Line(), "\n"))
		}
	}
	t.Log(r.Summary())
}
