//go:build unix

package main

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// lockWriter takes SQLite's write lock on a store as another program would, and
// returns how to give it back.
func lockWriter(t *testing.T, path string) (unlock func()) {
	t.Helper()
	// In write-ahead mode the lock is a byte of the index file: 120.
	f, err := os.OpenFile(path+"-shm", os.O_RDWR, 0)
	testkit.Must(t, err)
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Start: 120, Len: 1}
	testkit.Eventually(t, "the lock is free", func() bool { return syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &lock) == nil })
	t.Cleanup(func() { f.Close() })
	return func() { f.Close() }
}

// TestLockedStore: see checkAway; another program has locked the file.
func TestLockedStore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dibs.db")
	var unlock func()
	checkAway(t, "sqlite:"+path, func() { unlock = lockWriter(t, path) }, func() { unlock() })
}

// checkAway: while the server is down, hangs or may not write, a guarded request gets 503
// with Retry-After and does not run. Other requests are forwarded. Afterwards all works
// again. With --on-store-failure open, requests are forwarded and marked.
func checkAway(t *testing.T, store string, begin, end func()) {
	origin := newCounter(t, nil)
	closed := startProxy(t, origin.URL, store, "DIBS_PROXY_STORE_TIMEOUT=4s")
	open := startProxy(t, origin.URL, store, "DIBS_PROXY_STORE_TIMEOUT=4s", "--on-store-failure", "open", "--namespace", "open")
	mustPost(t, closed.url, "before", "x")
	begin()

	ready := func(p *process) int {
		res, err := http.Get(p.admin + "/readyz")
		testkit.Must(t, err)
		res.Body.Close()
		return res.StatusCode
	}
	testkit.Eventually(t, "it is not ready", func() bool { return ready(closed) == 503 })
	if got := ready(open); got != 200 {
		t.Errorf("/readyz of the proxy that is open is %d", got)
	}

	r := mustPost(t, closed.url, "k", "x")
	if r.status != 503 || retryAfter(r) < 1 {
		t.Errorf("%d %v %q", r.status, r.header, r.body)
	}
	problemOf(t, r)
	if n := origin.of("k"); n != 0 {
		t.Errorf("it ran %d times", n)
	}
	r = mustPost(t, open.url, "o", "x")
	if r.status != 201 || r.header.Get("Idempotency-Bypassed") != "store-unavailable" {
		t.Errorf("open: %d %v %q", r.status, r.header, r.body)
	}
	res, err := http.Get(closed.url)
	if err != nil || res.StatusCode != 201 {
		t.Fatalf("a request without a key: %v %v", res, err)
	}
	res.Body.Close()

	if n := strings.Count(closed.stderr.String(), "the store fails"); n != 1 {
		t.Errorf("the log says %d times that the store fails; want once", n)
	}

	end()
	testkit.Eventually(t, "it is ready again", func() bool { return ready(closed) == 200 })
	testkit.Eventually(t, "a request runs again", func() bool { return mustPost(t, closed.url, "k", "x").status == 201 })
	testkit.Eventually(t, "the store answers again", func() bool { return strings.Contains(closed.stderr.String(), "the store answers again") })
	if n := origin.of("k"); n != 1 {
		t.Errorf("afterwards it ran %d times", n)
	}
	if r := mustPost(t, closed.url, "before", "x"); !r.replayed() {
		t.Errorf("what was stored before is not replayed: %d %q", r.status, r.body)
	}
}

// TestRedisCannotSave: a Redis whose folder is not writable refuses writes, and answers PING with an
// error. doctor says so. serve and proxy live on with their pages open, and are not ready until the
// server takes writes again.
func TestRedisCannotSave(t *testing.T) {
	t.Parallel()
	redis := servertest.Redis(t, &servertest.RedisOptions{Persistence: servertest.AOF})
	serve := start(t, "serve", "--listen", "127.0.0.1:0", "--store", redis.URL())
	serve.awaitServing(t)
	serve.admin = serve.url
	proxy := startProxy(t, "http://127.0.0.1:1", redis.URL())
	ready := func(p *process) int {
		res, err := http.Get(p.admin + "/readyz")
		testkit.Must(t, err)
		res.Body.Close()
		return res.StatusCode
	}
	programs := map[string]*process{"serve": serve, "proxy": proxy}
	for name, p := range programs {
		if got := ready(p); got != 200 {
			t.Errorf("at first /readyz of %s is %d", name, got)
		}
	}

	dir := redis.Must("CONFIG", "GET", "dir").([]any)[1].(string)
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "dump.rdb", "in the way"), 0o700))
	redis.Must("CONFIG", "SET", "save", "3600 1")
	testkit.Eventually(t, "saving fails", func() bool {
		redis.Do("BGSAVE") // refused while one runs
		return redis.Info("rdb_last_bgsave_status") == "err"
	})

	code, stdout, stderr := run(t, "doctor", "--store", redis.URL())
	if code != 1 || !strings.Contains(stdout, "MISCONF") || !strings.Contains(stdout, "it can") {
		t.Errorf("doctor exited with %d:\n%s%s", code, stdout, stderr)
	}
	for name, p := range programs {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, "GET", p.admin+"/page/events", nil)
		testkit.Must(t, err)
		res, err := http.DefaultClient.Do(request)
		testkit.Must(t, err)
		defer res.Body.Close()
		lines := bufio.NewScanner(res.Body)
		lines.Buffer(nil, 1<<20)
		found := false
		for !found && lines.Scan() {
			found = strings.Contains(lines.Text(), `"severity":"dangerous"`)
		}
		if !found {
			t.Errorf("the page of %s does not say it: %v", name, lines.Err())
		}
	}
	for name, p := range programs {
		testkit.Eventually(t, name+" is not ready", func() bool { return ready(p) == 503 })
	}
	redis.Must("CONFIG", "SET", "save", "")
	for name, p := range programs {
		testkit.Eventually(t, name+" is ready again", func() bool { return ready(p) == 200 })
	}
}

// TestDuplicates: 40 keys, each sent five times at once. The nightly tests send 2,000.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	checkDuplicates(t, sqliteStore(t), 40, 15)
}

// checkDuplicates sends each of many keys several times at once, to two proxies that share a
// store. Each effect happens once. Each answer is the first, a replay with the same bytes,
// or a 409 with Retry-After; none is a 5xx.
func checkDuplicates(t *testing.T, store string, keys, connections int) {
	t.Helper()
	const copies = 5
	origin := newCounter(t, nil)
	proxies := []*process{
		startProxy(t, origin.URL, store, "--access-log=off"),
		startProxy(t, origin.URL, store, "--access-log=off"),
	}
	// Each of the groups sends the same key at once.
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: connections / 2, MaxIdleConnsPerHost: connections / 2}}
	defer client.CloseIdleConnections()
	work := make(chan int)
	var groups sync.WaitGroup
	var mu sync.Mutex
	total := make(map[string]int)
	for range connections/copies + 1 {
		groups.Go(func() {
			for i := range work {
				key := `"key-` + strconv.Itoa(i) + `"`
				for kind, n := range sendAtOnce(t, client, proxies, key, copies) {
					mu.Lock()
					total[kind] += n
					mu.Unlock()
				}
			}
		})
	}
	for i := range keys {
		work <- i
	}
	close(work)
	groups.Wait()
	t.Logf("%d requests: %v", keys*copies, total)
	for i := range keys {
		key := `"key-` + strconv.Itoa(i) + `"`
		if n := origin.of(key); n != 1 {
			t.Errorf("%s ran %d times", key, n)
		}
	}
	if total["first"] != keys {
		t.Errorf("%d first answers; want %d", total["first"], keys)
	}
}

// sendAtOnce sends the same request several times at once and counts the kinds
// of answers.
func sendAtOnce(t *testing.T, client *http.Client, proxies []*process, key string, copies int) map[string]int {
	var all sync.WaitGroup
	var mu sync.Mutex
	kinds := make(map[string]int)
	want := "run 1 of " + key
	for n := range copies {
		all.Go(func() {
			r, err := post(t.Context(), client, proxies[n%len(proxies)].url+"/charges", key, "amount=7")
			kind := ""
			switch {
			case err != nil:
				t.Errorf("%s: %v", key, err)
			case r.status == 201 && r.body == want && r.replayed():
				kind = "replay"
			case r.status == 201 && r.body == want:
				kind = "first"
			case r.status == 409 && retryAfter(r) >= 1 && retryAfter(r) <= 30:
				kind = "conflict"
			default:
				t.Errorf("%s: %d %q %v", key, r.status, r.body, r.header)
			}
			mu.Lock()
			kinds[kind]++
			mu.Unlock()
		})
	}
	all.Wait()
	return kinds
}
