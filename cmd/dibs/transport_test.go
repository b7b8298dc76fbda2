//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency/retry"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// retrying returns a client with a Transport that does not give up soon.
func retrying(t *testing.T) *http.Client {
	t.Helper()
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	transport, err := retry.New(&retry.Options{
		Base: base, MaxTries: 40, Backoff: 20 * time.Millisecond, MaxBackoff: 2 * killLease, Budget: 1,
	})
	testkit.Must(t, err)
	return &http.Client{Transport: transport}
}

// send posts once, as its caller sees it.
func send(client *http.Client, url, body string) (reply, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	res, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(text)}, err
}

// TestTransportThroughProxies: a client with retry.Transport sends a request through a
// proxy that is killed while the origin works, and restarted. The call succeeds, and the
// origin runs the request again that the kill cut off.
func TestTransportThroughProxies(t *testing.T) {
	t.Parallel()
	g := newGate()
	origin := newCounter(t, g.first())
	defer close(g.open)
	store, at := sqliteStore(t), servertest.Addr(t)
	begin := func() *process {
		p := start(t, "proxy", "--listen", at, "--upstream", origin.URL, "--store", store, "--lease", killLease.String())
		p.awaitServing(t)
		return p
	}
	proxy := begin()
	answer := make(chan error, 1)
	go func() {
		r, err := send(retrying(t), "http://"+at+"/charges", "7")
		if err == nil && (r.status != http.StatusCreated || !strings.HasPrefix(r.body, "run 2 of ")) {
			err = fmt.Errorf("the answer is %+v", r)
		}
		answer <- err
	}()
	<-g.begun
	proxy.signal(t, syscall.SIGKILL)
	<-proxy.done
	begin()
	testkit.Check(t, <-answer)
	if n := origin.total(); n != 1 {
		t.Errorf("the origin saw %d keys for a call", n)
	}
}
