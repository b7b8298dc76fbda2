package main

import (
	"context"
	"fmt"
	"strconv"
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
