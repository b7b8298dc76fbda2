//go:build unix

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestReload: under load, a proxy gets SIGHUP many times with other policies, other origins
// and faulty files. Every request is answered. After SIGTERM the clients go
// on with another proxy. No request is lost, and each runs once.
func TestReload(t *testing.T) {
	t.Parallel()
	checkReload(t, sqliteStore(t), nil, nil)
}

// checkReload: see TestReload. Unless stop is nil, it stops the store for some of the reloads, and
// goOn ends that.
func checkReload(t *testing.T, store string, stop, goOn func()) {
	t.Helper()
	origin := newCounter(t, nil)
	second := httptest.NewServer(origin)
	t.Cleanup(second.Close)
	files := t.TempDir()
	config := filepath.Join(files, "dibs.yaml")
	policies := []string{
		"upstream: " + origin.URL + "\n",
		"upstream: " + second.URL + "\nwait: 1m\nlease: 10s\naccess-log: false\n",
		"upstream: nowhere\n",
		"upstream: " + origin.URL + "\nroutes: [{path: /charges/**, upstream: '" + second.URL + "', on-crash: at-most-once, max-concurrent: 1000}]\n",
		"upstream: " + second.URL + "\nnamespace: other\n",
	}
	place(t, config, policies[0])
	timeout := "1m" // because no request is refused
	if stop != nil {
		timeout = "500ms"
	}
	proxies := make([]*process, 2)
	for i := range proxies {
		proxies[i] = startWith(t, []string{"DIBS_PROXY_STORE_TIMEOUT=" + timeout}, "proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--store", store, "--config", config)
		proxies[i].awaitServing(t)
	}
	load := &reloadLoad{url: proxies[0].url, next: proxies[1].url}
	clients := load.begin(t)
	for i := range 30 {
		stopped := stop != nil && i >= 10 && i < 20
		if stopped && i == 10 {
			stop()
		}
		for seen := load.answered.Load(); !stopped && load.answered.Load() < seen+10 && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
		place(t, config, policies[i%len(policies)])
		proxies[0].signal(t, syscall.SIGHUP)
		testkit.Eventually(t, "the configuration was read", func() bool {
			return strings.Count(proxies[0].stderr.String(), `msg="the configuration was`) > i
		})
		if stopped && i == 19 {
			testkit.Eventually(t, "a request is refused", func() bool { return load.refused.Load() > 0 })
			goOn()
		}
	}
	load.ends.Store(true)
	proxies[0].signal(t, syscall.SIGTERM)
	if code := proxies[0].code(t); code != 0 {
		t.Errorf("the proxy exited with %d", code)
	}
	load.over.Store(true)
	clients.Wait()
	if n := load.refused.Load(); stop == nil && n > 0 {
		t.Errorf("%d requests were answered 503", n)
	}
	log := proxies[0].stderr.String()
	if good, faulty := strings.Count(log, "was reloaded"), strings.Count(log, "was not reloaded"); good != 18 || faulty != 12 {
		t.Errorf("%d reloads and %d refusals; want 18 and 12", good, faulty)
	}
	for _, line := range []string{"answers were not stored", "requests were aborted"} {
		if strings.Contains(log, line) {
			t.Errorf("the proxy logged: %s", line)
		}
	}
	for i := range load.keys.Load() {
		if n := origin.of(reloadKey(i + 1)); n != 1 {
			t.Errorf("%s ran %d times", reloadKey(i+1), n)
		}
	}
}

func reloadKey(i int64) string { return fmt.Sprintf(`"key-%d"`, i) }

// reloadLoad is clients that send each request twice at once.
type reloadLoad struct {
	url  string
	next string // of the proxy that the clients use once url ends

	keys, answered, refused atomic.Int64

	ends atomic.Bool // connections to url may break
	over atomic.Bool // clients may end
}

func (l *reloadLoad) begin(t *testing.T) *sync.WaitGroup {
	all := new(sync.WaitGroup)
	for range 3 {
		all.Go(func() {
			client := &http.Client{Transport: new(http.Transport)}
			defer client.CloseIdleConnections()
			for n := 0; !l.over.Load() && !t.Failed(); n++ {
				if n%10 == 0 {
					client.CloseIdleConnections()
				}
				key := reloadKey(l.keys.Add(1))
				var both sync.WaitGroup
				for range 2 {
					both.Go(func() { l.send(t, client, key) })
				}
				both.Wait()
			}
		})
	}
	return all
}

// send sends a request until it has its answer.
func (l *reloadLoad) send(t *testing.T, client *http.Client, key string) {
	for url := l.url; !t.Failed(); {
		r, err := post(context.Background(), client, url+"/charges/1", key, "amount=7")
		switch {
		case err != nil && l.ends.Load():
			url = l.next
		case err != nil:
			t.Errorf("%s: %v", key, err)
		case r.status == http.StatusServiceUnavailable:
			l.refused.Add(1)
		case r.status == http.StatusConflict:
			time.Sleep(time.Millisecond)
		case r.status != http.StatusCreated || r.body != "run 1 of "+key:
			t.Errorf("%s: %d %q", key, r.status, r.body)
		default:
			l.answered.Add(1)
			return
		}
	}
}

// place puts a file in the place of another one.
func place(t *testing.T, name, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(name+".new", []byte(text), 0o600))
	testkit.Must(t, os.Rename(name+".new", name))
}

// TestReloadWithoutFile: without a configuration file, for example when a terminal is closed,
// SIGHUP ends nothing.
func TestReloadWithoutFile(t *testing.T) {
	t.Parallel()
	origin := newCounter(t, nil)
	p := startProxy(t, origin.URL, "memory:")
	for i := range 2 {
		p.signal(t, syscall.SIGHUP)
		if r := mustPost(t, p.url, fmt.Sprintf(`"k%d"`, i), "x"); r.status != 201 {
			t.Errorf("after SIGHUP: %d", r.status)
		}
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t); code != 0 {
		t.Errorf("the proxy exited with %d", code)
	}
}

// TestReloadWhileItStarts: SIGHUP does not end a proxy that reads its configuration for the first
// time.
func TestReloadWhileItStarts(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "dibs.yaml")
	testkit.Must(t, syscall.Mkfifo(config, 0o600))
	proxy := start(t, "proxy", "--listen", "127.0.0.1:0", "--store", sqliteStore(t), "--config", config)
	pipe, err := os.OpenFile(config, os.O_WRONLY, 0) // waits until the proxy reads
	testkit.Must(t, err)
	proxy.signal(t, syscall.SIGHUP)
	place(t, config, "upstream: http://127.0.0.1:1\n")
	if _, err := pipe.WriteString("upstream: http://127.0.0.1:1\n"); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, pipe.Close())
	proxy.awaitServing(t)
	testkit.Eventually(t, "the configuration was reloaded", func() bool { return strings.Contains(proxy.stderr.String(), `msg="the configuration was reloaded"`) })
}
