package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

// once is a key that is never used again.
func once() func(connection, i int) string {
	run := time.Now().UnixNano()
	return func(connection, i int) string { return fmt.Sprintf("%x-%d-%d", run, connection, i) }
}

// again is the one key of a client that retries.
func again(connection, _ int) string { return "key-" + strconv.Itoa(connection) }

// compareServers compares two servers.
func compareServers(ctx context.Context, c config, ours, floor *server, keys func() func(connection, i int) string) (figure, error) {
	side := func(s *server) func(context.Context, time.Duration) (float64, error) {
		return func(ctx context.Context, d time.Duration) (float64, error) {
			return load{addr: s.addr(), keys: keys()}.perSecond(ctx, d)
		}
	}
	return interleave(ctx, c, "answers/s", side(ours), side(floor))
}

func replays() func(connection, i int) string { return again }

// middlewareReplay compares replays of the middleware with the bare handler,
// both behind a real server.
func middlewareReplay(ctx context.Context, c config) (figure, error) {
	bare, err := serveOwn(ctx, "bare")
	if err != nil {
		return figure{}, err
	}
	defer bare.end()
	guarded, err := serveOwn(ctx, "guarded")
	if err != nil {
		return figure{}, err
	}
	defer guarded.end()
	return compareServers(ctx, c, guarded, bare, replays)
}

// middlewareAllocations counts what the middleware allocates for a first
// request beyond what the bare handler does.
func middlewareAllocations(_ context.Context, c config) (figure, error) {
	guarded, closeAll, err := guard(http.HandlerFunc(charge))
	if err != nil {
		return figure{}, err
	}
	defer closeAll()
	const runs = 20000
	measure := func(h http.Handler, round int) float64 {
		requests := make([]*http.Request, runs+1)
		for i := range requests {
			r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Idempotency-Key", fmt.Sprintf("key-%d-%d", round, i))
			requests[i] = r
		}
		w := &sink{header: http.Header{}}
		i := 0
		return testing.AllocsPerRun(runs, func() {
			clear(w.header)
			h.ServeHTTP(w, requests[i])
			i++
		})
	}
	f := figure{unit: "allocations"}
	for round := range c.rounds {
		bare := measure(http.HandlerFunc(charge), round)
		f.value = append(f.value, measure(guarded, round)-bare)
		f.detail = fmt.Sprintf("the bare handler makes %.0f", bare)
	}
	return f, nil
}

// sink is a ResponseWriter that keeps nothing.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(int)             {}

// proxyMiss compares first requests through the proxy with the same through
// the tuned reverse proxy, before one origin.
func proxyMiss(ctx context.Context, c config) (figure, error) { return compareProxies(ctx, c, once) }

// proxyReplay compares replays of the proxy with requests through the tuned
// reverse proxy.
func proxyReplay(ctx context.Context, c config) (figure, error) {
	return compareProxies(ctx, c, replays)
}

func compareProxies(ctx context.Context, c config, keys func() func(connection, i int) string) (figure, error) {
	origin, err := serveOwn(ctx, "bare")
	if err != nil {
		return figure{}, err
	}
	defer origin.end()
	reverse, err := serveOwn(ctx, "reverse", origin.url)
	if err != nil {
		return figure{}, err
	}
	defer reverse.end()
	proxy, err := serve(ctx, c.dibs, "proxy", "--listen", "127.0.0.1:0", "--upstream", origin.url, "--store", "memory:", "--access-log=off")
	if err != nil {
		return figure{}, err
	}
	defer proxy.end()
	return compareServers(ctx, c, proxy, reverse, keys)
}
