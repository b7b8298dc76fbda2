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

// side makes one side of a contest of a server and the keys sent to it.
func side(s *server, keys func() func(connection, i int) string) func(context.Context, time.Duration) (float64, error) {
	return func(ctx context.Context, d time.Duration) (float64, error) {
		before := s.processor()
		start := time.Now()
		perSecond, err := load{addr: s.addr(), keys: keys()}.perSecond(ctx, d)
		answers := perSecond * time.Since(start).Seconds()
		s.each = append(s.each, float64((s.processor()-before).Nanoseconds())/1e3/answers)
		return perSecond, err
	}
}

// contend runs a contest between two servers. Beside the ratio of what they
// answer it tells what an answer costs each in processor time, which the
// machine's other work disturbs less.
func contend(ctx context.Context, c config, ours, floor *server, keys func() func(connection, i int) string) (figure, error) {
	f, err := interleave(ctx, c, "answers/s", side(ours, keys), side(floor, keys))
	if err == nil && ours.processor() > 0 {
		f.detail += fmt.Sprintf(", for %s against %s µs of processor time each", count(median(ours.each)), count(median(floor.each)))
	}
	return f, err
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
	return contend(ctx, c, guarded, bare, replays)
}

// proxyMiss compares first requests through the proxy with the same through
// the tuned reverse proxy, before one origin.
func proxyMiss(ctx context.Context, c config) (figure, error) { return proxyContest(ctx, c, once) }

// proxyReplay compares replays of the proxy with requests through the tuned
// reverse proxy.
func proxyReplay(ctx context.Context, c config) (figure, error) { return proxyContest(ctx, c, replays) }

func proxyContest(ctx context.Context, c config, keys func() func(connection, i int) string) (figure, error) {
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
	return contend(ctx, c, proxy, reverse, keys)
}
