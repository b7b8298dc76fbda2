package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestKilled kills the proxy while the tool runs, and after it has answered. The card is charged once.
// While the outcome is unknown each of two callers hears that, and what an operator has resolved it with.
func TestKilled(t *testing.T) {
	t.Parallel()
	s, charged, answer := new(shop), make(chan struct{}), make(chan struct{})
	slow := func(ctx context.Context, r *mcp.CallToolRequest, o order) (*mcp.CallToolResult, any, error) {
		result, out, err := s.charge(ctx, r, o)
		charged <- struct{}{}
		<-answer
		return result, out, err
	}
	origin := httptest.NewServer(serve(slow, &ways[0].options))
	t.Cleanup(func() { origin.CloseClientConnections(); origin.Close() })
	flags := []string{"--store=sqlite:" + t.TempDir() + "/dibs.db", "--lease=1s", "--for=mcp", "--upstream=" + origin.URL, "--listen="}
	var proxy *exec.Cmd
	start := func(addr string) string {
		t.Helper()
		p, url, err := startProxy(append(flags[:len(flags)-1:len(flags)-1], flags[len(flags)-1]+addr)...)
		testkit.Must(t, err)
		proxy = p
		t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
		return url
	}
	url := start("127.0.0.1:0")
	kill := func() {
		t.Helper()
		testkit.Must(t, proxy.Process.Kill())
		_ = proxy.Wait()
		if again := start(strings.TrimPrefix(url, "http://")); again != url {
			t.Fatalf("the next proxy serves on %s; want %s", again, url)
		}
	}
	callers := []*caller{newCaller(t, url, ways[0].revision), newCaller(t, url, ways[0].revision)}
	// all lets both call with the key, and returns what each heard.
	all := func(key string) (heard []string) {
		heard = make([]string, len(callers))
		var waiting sync.WaitGroup
		for i, c := range callers {
			waiting.Go(func() { heard[i] = c.outcome(t, key) })
		}
		waiting.Wait()
		return heard
	}

	first := make(chan string, 1)
	go func() { first <- callers[0].outcome(t, "k") }()
	testkit.Await(t, "the charge", charged)
	kill() // and the first caller calls again
	close(answer)
	const unknown = "outcome-unknown"
	if heard := testkit.Await(t, "the first caller's answer", first); heard != unknown {
		t.Errorf("the caller whose proxy was killed heard %q", heard)
	}
	if heard := all("k"); heard[0] != unknown || heard[1] != unknown {
		t.Errorf("later the callers heard %q", heard)
	}
	if n := s.charges(); n != 1 {
		t.Errorf("%d charges", n)
	}
	// An operator, who has seen the charge, says so as the guide does.
	command := regexp.MustCompile(`dibs resolve --id ID --text '([^']*)'`).FindStringSubmatch(string(testkit.ReadFile(t, "../../docs/guides/agents.md")))
	if command == nil {
		t.Fatal("the guide does not say how an operator resolves it")
	}
	args := []string{"resolve", "--yes", flags[0], "--id", callers[0].instance, "--text", command[1]}
	out, err := exec.Command("dibs", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("dibs resolve: %v: %s", err, out)
	}
	if heard := all("k"); heard[0] != "charge 1" || heard[1] != "charge 1" {
		t.Errorf("after dibs resolve the callers heard %q", heard)
	}

	go func() { <-charged }()
	if heard := all("l"); heard[0] != "charge 2" || heard[1] != "charge 2" {
		t.Errorf("under another key the callers heard %q", heard)
	}
	kill()
	if heard := all("l"); heard[0] != "charge 2" || heard[1] != "charge 2" {
		t.Errorf("from the next proxy the callers heard %q", heard)
	}
	if n := s.charges(); n != 2 {
		t.Errorf("%d charges under two keys", n)
	}
}

// outcome calls until it hears a result or that there will be none: the text, or the problem's name.
func (c *caller) outcome(t *testing.T, key string) string {
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	for {
		text, err := c.call(ctx, key)
		var refused *jsonrpc.Error
		var problem struct{ Type, Instance string }
		switch {
		case err == nil:
			return text
		case ctx.Err() != nil:
			return err.Error()
		case errors.As(err, &refused) && json.Unmarshal(refused.Data, &problem) == nil && !strings.HasSuffix(problem.Type, "#in-progress"):
			_, name, _ := strings.Cut(problem.Type, "#")
			c.instance = problem.Instance
			return name
		}
	}
}
