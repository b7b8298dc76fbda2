package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/servertest"
)

// TestStorm: 64 connections, 2,000 keys, each sent five times at once, over two
// proxy processes that share one store. Each effect happens exactly once; each
// answer is the first, a replay with the same bytes, or a 409 that says when to
// retry; none is a 5xx.
func TestStorm(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { blow(t, sqliteStore(t)) })
	t.Run("redis", func(t *testing.T) { blow(t, servertest.Redis(t, nil).URL()) })
	t.Run("postgres", func(t *testing.T) { blow(t, ownSchema(postgres().URL())) })
	t.Run("mariadb", func(t *testing.T) { blow(t, ownPrefix(mariadb().URL())) })
}

func blow(t *testing.T, store string) {
	t.Parallel()
	const keys, copies, connections = 2000, 5, 64
	origin := newCounter(t, nil)
	proxies := []*process{
		startProxy(t, origin.URL, store, "--access-log", "off"),
		startProxy(t, origin.URL, store, "--access-log", "off"),
	}
	// Twelve groups of five send the same key at once; what is left over of
	// the 64 connections sends on its own.
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: connections / 2, MaxIdleConnsPerHost: connections / 2}}
	defer client.CloseIdleConnections()
	work := make(chan int)
	var groups sync.WaitGroup
	var mu sync.Mutex
	total := make(map[string]int)
	for range connections/copies + 1 {
		groups.Go(func() {
			for i := range work {
				key := `"storm-` + strconv.Itoa(i) + `"`
				for kind, n := range sendAtOnce(t, client, proxies, key, copies) {
					mu.Lock()
					total[kind] += n
					mu.Unlock()
				}
			}
		})
	}
	began := time.Now()
	for i := range keys {
		work <- i
	}
	close(work)
	groups.Wait()
	t.Logf("%d requests in %v: %v", keys*copies, time.Since(began).Round(time.Millisecond), total)
	for i := range keys {
		key := `"storm-` + strconv.Itoa(i) + `"`
		if n := origin.of(key); n != 1 {
			t.Errorf("%s ran %d times", key, n)
		}
	}
	if total["first"] != keys {
		t.Errorf("%d first answers; want %d", total["first"], keys)
	}
	if total["replay"] == 0 || total["conflict"] == 0 {
		t.Errorf("the storm was none: %v", total)
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

// retryAfter returns the seconds after which to retry; 0 when it is not said.
func retryAfter(r reply) int {
	n, err := strconv.Atoi(r.header.Get("Retry-After"))
	if err != nil {
		return 0
	}
	return n
}

// TestDemo: the demo shows what it is for, in time, without the network.
func TestDemo(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { checkDemo(t) })
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := servertest.Redis(t, &servertest.RedisOptions{Password: secret})
		checkDemo(t, "--store", server.URL())
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		checkDemo(t, "--store", ownSchema(postgres().URL()))
	})
	t.Run("mariadb", func(t *testing.T) {
		t.Parallel()
		checkDemo(t, "--store", ownPrefix(mariadb().URL()))
	})
}

func checkDemo(t *testing.T, flags ...string) {
	began := time.Now()
	code, stdout, stderr := run(t, append([]string{"demo", "--exit"}, flags...)...)
	if code != 0 {
		t.Fatalf("it ended with %d: %s%s", code, stdout, stderr)
	}
	limit := 15 * time.Second
	if len(flags) > 0 {
		limit *= 2 // on a server's time
	}
	if took := time.Since(began); took > limit {
		t.Errorf("it took %v", took)
	}
	var bare, with int
	for _, want := range []string{"orders charged more than once", "orders lost"} {
		if !scanRow(stdout, want, &bare, &with) || with != 0 {
			t.Errorf("%s: %d with dibs:\n%s", want, with, stdout)
		}
	}
	if scanRow(stdout, "orders charged more than once", &bare, &with); bare == 0 {
		t.Errorf("the bare service charged nobody twice:\n%s", stdout)
	}
	for _, want := range []string{"answers replayed", "conflicts (409), retried", "cut off by the kill, then settled"} {
		if !scanRow(stdout, want, &bare, &with) || with == 0 || bare != 0 {
			t.Errorf("%s: %d bare, %d with dibs:\n%s", want, bare, with, stdout)
		}
	}
}

// scanRow reads a row of the demo's table.
func scanRow(table, name string, bare, with *int) bool {
	_, rest, ok := cutAfter(table, name)
	if !ok {
		return false
	}
	n, err := fmt.Sscan(rest, bare, with)
	return n == 2 && err == nil
}

// TestDemoInterrupted: a demo that is interrupted ends with the signal's code
// and leaves no process and no file behind.
func TestDemoInterrupted(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	p := start(t, "demo")
	eventually(t, func() bool {
		ledgers, err := filepath.Glob(filepath.Join(temp, "dibs-demo-*", "bare.ledger"))
		return err == nil && len(ledgers) == 1
	})
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t, 20*time.Second); code != 128+int(syscall.SIGTERM) {
		t.Errorf("it ended with %d: %s", code, p.stderr.String())
	}
	if left, err := filepath.Glob(filepath.Join(temp, "dibs-demo-*")); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}
