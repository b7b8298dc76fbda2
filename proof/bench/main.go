// Command bench measures dibs against raw floors and peers in one run, as
// ratios, and prints the rows of docs/reference/benchmarks.md. With -page it writes them there, and draws them.
//
// The sides of a comparison run in turns, round after round. The median of the rounds' ratios
// counts, because the machine's speed drifts for both sides.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/prove/draw"
	"github.com/dibs-go/dibs/internal/prove/progress"
	"github.com/dibs-go/dibs/internal/prove/servertest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// comparison is one line of the table: something of ours beside its floor.
type comparison struct {
	name  string
	goal  string
	run   func(ctx context.Context, c config) figure
	group string
}

// config is what all comparisons share.
type config struct {
	rounds int
	round  time.Duration // how long one side runs in one round
	dibs   string        // the built program
}

// comparisons are the lines of the table, in order.
var comparisons = []comparison{
	{group: "memory", name: "uncontended `Do` on memstore", goal: "≤ 1.5 µs", run: uncontendedDo},
	{group: "memory", name: "grants among 32 waiters on memstore, max/min", goal: "≤ 1.05", run: fairness(openMemory, nil)},
	{group: "sqlite", name: "SQLite durable claim+settle, 64 goroutines / one by one", goal: "≥ 8", run: sqliteGroupCommit},
	{group: "redis", name: "Redis claim+settle, 64 goroutines / best peer", goal: "≥ 2", run: rates(openRedis, 64, redisPeers, floorName)},
	{group: "redis", name: "Redis claim+settle, 64 goroutines / raw floor", goal: "≥ 0.65", run: rates(openRedis, 64, []string{floorName}, redisPeers...)},
	{group: "redis", name: "Redis claim+settle, 512 goroutines / raw floor", goal: "≥ 0.6", run: rates(openRedis, 512, []string{floorName}, redisPeers...)},
	{group: "redis", name: "Redis claim+settle, 1 goroutine / best peer", goal: "≥ 0.9", run: rates(openRedis, 1, redisPeers, floorName)},
	{group: "redis", name: "Redis claim+settle, 64 goroutines: p99", goal: "≤ 2 ms", run: tails(openRedis, 64, redsyncName)},
	{group: "redis", name: "Redis hand-over, 2 waiters: p50", goal: "≤ 0.25 ms", run: handOver(openRedis, 2, redisPeers)},
	{group: "redis", name: "Redis hand-over, 32 waiters: p50", goal: "≤ 0.25 ms", run: handOver(openRedis, 32, redisPeers)},
	{group: "redis", name: "grants among 32 waiters on Redis, max/min", goal: "≤ 1.05", run: fairness(openRedis, redisPeers)},
	{group: "redis", name: "Redis round trips of a contended cycle", goal: "2", run: redisRoundTrips},
	{group: "redis", name: "Redis round trips of a replay", goal: "1", run: redisReplay},
	{group: "redis", name: "Redis claim+settle, 64 goroutines: with metrics and traces / without", goal: "≥ 0.97", run: redisObserved},
	{group: "postgres", name: "PostgreSQL durable claim+settle, 64 goroutines / one by one", goal: "≥ 3", run: rates(openPostgres, 64, []string{singlyName})},
	{group: "postgres", name: "PostgreSQL durable claim+settle, 512 goroutines / one by one", goal: "≥ 3", run: rates(openPostgres, 512, []string{singlyName})},
	{group: "postgres", name: "PostgreSQL durable claim+settle, 64 goroutines / pglock as documented", goal: "≥ 5", run: rates(openPostgres, 64, pglocks[:1])},
	{group: "postgres", name: "PostgreSQL durable claim+settle, 512 goroutines / best of pglock", goal: "≥ 5", run: rates(openPostgres, 512, pglocks)},
	{group: "postgres", name: "PostgreSQL hand-over between processes, 2 waiters: p50", goal: "≤ 0.5 ms", run: handOver(openPostgres, 2, []string{advisoryName})},
	{group: "postgres", name: "PostgreSQL hand-over between processes, 32 waiters: p50", goal: "≤ 0.5 ms", run: handOver(openPostgres, 32, []string{advisoryName})},
	{group: "postgres", name: "grants among 32 waiters on PostgreSQL, max/min", goal: "≤ 1.05", run: fairness(openPostgres, []string{advisoryName})},
	{group: "sql", name: "PostgreSQL by SQL, one caller: `dibs_claim` and `dibs_release` / `pg_try_advisory_lock` and unlock", goal: "–", run: rates(openBySQL, 1, []string{advisoryName})},
	{group: "sql", name: "PostgreSQL by SQL, 64 callers: `dibs_claim` and `dibs_release` / `pg_try_advisory_lock` and unlock", goal: "–", run: rates(openBySQL, 64, []string{advisoryName})},
	{group: "sql", name: "PostgreSQL by SQL, one caller: `dibs_claim` and `dibs_release` / a lease table written by hand", goal: "–", run: rates(openBySQL, 1, []string{tableName})},
	{group: "sql", name: "PostgreSQL by SQL, 64 callers: `dibs_claim` and `dibs_release` / a lease table written by hand", goal: "–", run: rates(openBySQL, 64, []string{tableName})},
	{group: "mysql", name: "MariaDB durable claim+settle, 64 goroutines / one by one", goal: "≥ 3", run: rates(openMySQL, 64, []string{singlyName})},
	{group: "mysql", name: "MariaDB durable claim+settle, 512 goroutines / one by one", goal: "≥ 3", run: rates(openMySQL, 512, []string{singlyName})},
	{group: "alone", name: "SQLite, one caller: claim and settle, p50", goal: "–", run: oneCaller(openSQLite)},
	{group: "alone", name: "Redis, one caller: claim and settle, p50", goal: "–", run: oneCaller(openRedis, floorName)},
	{group: "alone", name: "PostgreSQL, one caller: claim and settle, p50", goal: "–", run: oneCaller(openPostgres, advisoryName)},
	{group: "alone", name: "MariaDB, one caller: claim and settle, p50", goal: "–", run: oneCaller(openMySQL)},
	{group: "objects", name: "etcd, one caller: claim+settle / `concurrency.Mutex`, lock+unlock", goal: "–", run: rates(openEtcd, 1, []string{mutexName})},
	{group: "objects", name: "etcd, 16 callers: the same", goal: "–", run: rates(openEtcd, 16, []string{mutexName})},
	{group: "objects", name: "S3: requests of a claim and its settlement", goal: "6", run: s3Requests},
	{group: "sqllock", name: "gapless numbers, 100 a transaction / `MAX+1` under an advisory lock", goal: "≥ 20", run: sequenceNumbers},
	{group: "jobs", name: "River jobs of 20 ms, 50 workers: each with a mutex of its own / without", goal: "≥ 0.8", run: jobRates(openRiver, 20*time.Millisecond)},
	{group: "jobs", name: "Asynq tasks of 20 ms, 50 workers: each with a mutex of its own / without", goal: "≥ 0.8", run: jobRates(openAsynq, 20*time.Millisecond)},
	{group: "middleware", name: "middleware on memstore: replay / bare handler", goal: "≥ 0.8", run: middlewareReplay},
	{group: "proxy", name: "proxy: first request / tuned `httputil.ReverseProxy`", goal: "≥ 0.8", run: compareProxies(once)},
	{group: "proxy", name: "proxy: replay / tuned `httputil.ReverseProxy`", goal: "≥ 2", run: compareProxies(again)},
	{group: "proxy", name: "proxy: first request, with metrics / without", goal: "≥ 0.97", run: proxyObserved},
	{group: "proxy", name: "proxy: first request, with ten pages for operators open / with none", goal: "≥ 0.97", run: proxyPages},
	{group: "serve", name: "`dibs serve` in memory: claim+settle by 64 connections / bare handler with the same answers", goal: "≥ 0.7", run: servedBare},
	{group: "serve", name: "`dibs serve` on Redis, claim+settle by 64 connections / etcd's JSON gateway, lock+unlock", goal: "≥ 1", run: servedEtcd(nil)},
	{group: "serve", name: "the same on Redis with `appendfsync always` / etcd's JSON gateway", goal: "≥ 1", run: servedEtcd(&servertest.RedisOptions{Persistence: servertest.AOF})},
	{group: "serve", name: "`dibs serve` on Redis, one caller on a Unix socket: what a call takes longer than in process, p50", goal: "≤ 0.15 ms", run: servedLatency},
	{group: "serve", name: "`dibs serve`: memory while 10,000 long polls wait for one key", goal: "≤ 380 MiB", run: servedMemory},
	{group: "serve", name: "Python, one caller: lock and unlock / `SET NX PX` and compare-and-delete by redis-py", goal: "≥ 0.5", run: python.calls("threads", "1")},
	{group: "serve", name: "Python, 8 threads: the same", goal: "≥ 1", run: python.calls("threads", "8")},
	{group: "serve", name: "Python, 64 tasks of asyncio: the same", goal: "≥ 1", run: python.calls("tasks", "64")},
	{group: "serve", name: "Ruby, one caller: lock and unlock / `SET NX PX` and compare-and-delete by redis-rb", goal: "≥ 0.5", run: ruby.calls()},
	{group: "serve", name: "Ruby, 8 threads: the same", goal: "≥ 1", run: ruby.calls("8")},
	{group: "serve", name: "JavaScript, one caller: lock and unlock / `SET NX PX` and compare-and-delete by ioredis", goal: "≥ 0.5", run: javaScript.against("raw").calls()},
	{group: "serve", name: "JavaScript, 64 promises: the same", goal: "≥ 1", run: javaScript.against("raw").calls("64")},
	{group: "serve", name: "JavaScript, one caller: lock and unlock / redlock", goal: "–", run: javaScript.calls()},
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == childArg {
		return child(ctx, args[1:])
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	var c config
	only := flags.String("only", "", "run only these `groups`, or what has such a text in its name, with commas (default all): "+strings.Join(groups(), ", "))
	flags.IntVar(&c.rounds, "rounds", 15, "how many `rounds` each comparison has")
	flags.DurationVar(&c.round, "round", 700*time.Millisecond, "how long each side of a comparison runs in a round")
	flags.StringVar(&c.dibs, "dibs", "../../bin/dibs", "the built `program`")
	page := flags.String("page", "", "replace the tables of this `FILE` that were measured whole, and draw its charts")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("%q is not a flag; see -only", flags.Arg(0))
	case c.rounds < 1 || c.round <= 0:
		return fmt.Errorf("%d rounds of %v measure nothing; both must be more than 0", c.rounds, c.round)
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	fmt.Fprint(os.Stderr, c.announcement(len(chosen)))
	line, began := progress.New(os.Stderr, os.Getenv), time.Now()
	defer line.Show("")
	report := newReport(os.Stdout, c)
	for i, comparison := range chosen {
		line.Show(pace(i, len(chosen), comparison.name, time.Since(began)))
		f, err := comparison.measure(ctx, c)
		line.Show("")
		if err != nil {
			return err
		}
		report.add(comparison, f)
	}
	if err := report.end(); err != nil || *page == "" {
		return err
	}
	if err := report.write(*page); err != nil {
		return err
	}
	return draw.Write(*page)
}

// groups returns the groups of the comparisons, in order.
func groups() (names []string) {
	for _, c := range comparisons {
		if !slices.Contains(names, c.group) {
			names = append(names, c.group)
		}
	}
	return names
}

// choose returns the comparisons of the groups, in order. A text that is not a group chooses the
// comparisons with it in their names. There are commas in between, unless the whole is a part of a
// name. A text that chooses nothing is an error.
func choose(only string) ([]comparison, error) {
	of := func(text string) func(comparison) bool {
		if slices.Contains(groups(), text) {
			return func(c comparison) bool { return c.group == text }
		}
		return func(c comparison) bool { return strings.Contains(c.name, text) }
	}
	texts := []string{only}
	if !slices.ContainsFunc(comparisons, of(only)) {
		texts = strings.Split(only, ",")
	}
	for _, text := range texts {
		if text == "" && len(texts) > 1 || !slices.ContainsFunc(comparisons, of(text)) {
			return nil, fmt.Errorf("only: %q is neither a group nor a part of a name; the groups are %s", text, strings.Join(groups(), ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(comparisons), func(c comparison) bool {
		return !slices.ContainsFunc(texts, func(text string) bool { return of(text)(c) })
	}), nil
}
