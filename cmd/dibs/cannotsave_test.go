//go:build unix

package main

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
