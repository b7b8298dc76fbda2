package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dibs-go/dibs/internal/prove/servertest"
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
	// The operator has seen the charge, and says so as the guide does.
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

// dir has what the tests install.
var dir string

func TestMain(m *testing.M) {
	dibs, err := servertest.Dibs()
	if err == nil {
		dir, err = os.MkdirTemp("", "dibs-agents-*")
	}
	if err != nil {
		panic(err)
	}
	os.Setenv("PATH", filepath.Dir(dibs)+string(os.PathListSeparator)+os.Getenv("PATH"))
	testkit.Main(m, nil, func() { os.RemoveAll(dir) })
}

// TestGuide: the program prints what the guide shows, and the guide's code is the program's.
func TestGuide(t *testing.T) {
	guide := string(testkit.ReadFile(t, "../../docs/guides/agents.md"))
	shown := regexp.MustCompile("(?s)```console\n\\$ go run ./examples/agents\n(.*?)```").FindStringSubmatch(guide)
	if shown == nil {
		t.Fatal("the guide does not show the program")
	}
	var out strings.Builder
	testkit.Must(t, run(t.Context(), &out))
	if out.String() != shown[1] {
		t.Errorf("the program prints\n%s\nthe guide shows\n%s", &out, shown[1])
	}
	program := string(testkit.ReadFile(t, "shop.go")) + string(testkit.ReadFile(t, "agent.go"))
	code := regexp.MustCompile("(?s)```golang\n(.*?)```").FindAllStringSubmatch(guide, -1)
	for _, block := range code[:2] {
		if !strings.Contains(program, block[1]) {
			t.Errorf("the guide has code that is not the program's:\n%s", block[1])
		}
	}
}

// noting is the network of a client. It notes cancellations that were answered.
type noting struct{ cancelled chan int }

// RoundTrip sends a request.
func (n *noting) RoundTrip(r *http.Request) (*http.Response, error) {
	var text []byte
	if r.Body != nil {
		var err error
		if text, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(text))
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && bytes.Contains(text, []byte("notifications/cancelled")) {
		n.cancelled <- res.StatusCode
	}
	return res, err
}

// TestCancelled: a client whose patience ends cancels its call, and then ends its session. The tool stops
// when it is cancelled. Behind the proxy it runs to its end, and the next try hears the result.
func TestCancelled(t *testing.T) {
	t.Parallel()
	const revision = "2025-06-18"
	s, charging, answer, cancelled := new(shop), make(chan struct{}, 9), make(chan struct{}), new(atomic.Int64)
	slow := func(ctx context.Context, r *mcp.CallToolRequest, o order) (*mcp.CallToolResult, any, error) {
		charging <- struct{}{}
		select {
		case <-answer:
			return s.charge(ctx, r, o)
		case <-ctx.Done():
			cancelled.Add(1)
			return nil, nil, ctx.Err()
		}
	}
	var messages atomic.Int64 // that end a call
	tools := serve(slow, &mcp.StreamableHTTPOptions{})
	url := proxied(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			messages.Add(1)
		}
		tools.ServeHTTP(w, r)
	}))
	network := &noting{make(chan int, 9)}
	transport := &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: network}}
	impatient, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	testkit.Must(t, err)
	ctx, giveUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := impatient.CallTool(ctx, &mcp.CallToolParams{Meta: mcp.Meta{keyMember: "k"}, Name: "charge", Arguments: order{ID: "k", Cents: 1200}})
		gone <- err
	}()
	testkit.Await(t, "the tool runs", charging)
	giveUp() // the SDK sends notifications/cancelled
	if err := testkit.Await(t, "the client has given up", gone); err == nil {
		t.Fatal("the client heard a result")
	}
	if status := testkit.Await(t, "the cancellation is answered", network.cancelled); status != http.StatusAccepted {
		t.Errorf("the cancellation is answered %d", status)
	}
	_ = impatient.Close() // the SDK sends DELETE
	if n := messages.Load(); n != 0 {
		t.Errorf("the server got %d requests to end the session", n)
	}
	patient := newCaller(t, url, revision)
	heard := make(chan string, 1)
	go func() {
		text, err := patient.call(t.Context(), "k")
		testkit.Check(t, err)
		heard <- text
	}()
	close(answer)
	if text := testkit.Await(t, "the next try", heard); text != "charge 1" || s.charges() != 1 || cancelled.Load() != 0 {
		t.Errorf("the next try heard %q, after %d charges and %d cancellations", text, s.charges(), cancelled.Load())
	}
}
