//go:build unix

package main

import (
	"net/http"
	"strconv"
	"sync"
	"testing"
)

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
