package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// rig is a server under test.
type rig struct {
	*httptest.Server
	t      testing.TB
	server *Server
	log    *testkit.Output
	over   atomic.Int64 // calls that are over
}

// start starts a server of the store.
func start(t testing.TB, under dibs.Store, change func(*Config)) *rig {
	t.Helper()
	c := Config{
		MaxBody: 16 << 20, MaxBodyMemory: 256 << 20, MaxCalls: 1000,
		MaxWaiters: 20_000, StoreTimeout: 4 * time.Second, Drain: time.Second,
	}
	if change != nil {
		change(&c)
	}
	r := &rig{t: t, log: new(testkit.Output)}
	var err error
	if r.server, err = New(c, under, Hooks{
		Version: "test", Metrics: func(*string) http.Handler { return http.NotFoundHandler() }, Log: slog.New(slog.NewTextHandler(r.log, nil)), Call: func(Call) { r.over.Add(1) },
	}); err != nil {
		t.Fatal(err)
	}
	r.Server = httptest.NewUnstartedServer(r.server.Handler())
	r.Config.ConnContext = withConnection
	r.Start()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	t.Cleanup(func() {
		r.server.shell.Stop()
		r.Close()
		r.server.unnotify()
	})
	return r
}

// kill ends the server with all its connections, as the end of its process would.
func (r *rig) kill() {
	r.Listener.Close()
	r.CloseClientConnections()
	r.server.unnotify()
}

func inMemory(t testing.TB) *memstore.Store {
	t.Helper()
	s, err := memstore.New(nil)
	testkit.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// reply is the answer to a call.
type reply struct {
	status  int
	header  http.Header
	text    string
	Answers []struct {
		State, Namespace, Fence string
		Queued                  bool
		Left                    int64 `json:"left_ms"`
		Error                   *struct{ Type, Detail string }
	}
	Type, Detail string
}

func (r *reply) state() string {
	if len(r.Answers) == 0 {
		return fmt.Sprintf("%d %s", r.status, r.text)
	}
	if e := r.Answers[0].Error; e != nil {
		return e.Type
	}
	return r.Answers[0].State
}

// do sends a request. With a token it has that credential.
func (r *rig) do(method, path, token, body string) *reply {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.URL+path, bytes.NewReader([]byte(body)))
	testkit.Must(r.t, err)
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return r.send(req)
}

func (r *rig) send(req *http.Request) *reply {
	r.t.Helper()
	resp, err := r.Client().Do(req)
	testkit.Must(r.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testkit.Must(r.t, err)
	got := &reply{status: resp.StatusCode, header: resp.Header, text: string(text)}
	_ = json.Unmarshal(text, got) // some answers are no JSON
	return got
}

// claim claims "k" with a token of that number.
func (r *rig) claim(n int, more string) *reply {
	r.t.Helper()
	return r.do("POST", "/v1/claim", "", fmt.Sprintf(`{"claims":[{"key":"k","token":"%032x"%s}`, n, more))
}

// settle releases "k".
func (r *rig) settle(n int) *reply {
	r.t.Helper()
	return r.do("POST", "/v1/settle", "", fmt.Sprintf(`{"settlements":[{"key":"k","token":"%032x"}]}`, n))
}

// waits waits until that many claims wait.
func (r *rig) waits(n int64) {
	r.t.Helper()
	testkit.Eventually(r.t, fmt.Sprintf("%d claims wait", n), func() bool { return r.server.load.waiters.Load() == n })
}

// TestCanceled: a call is canceled if its client went away before it was answered, and not if it
// went away with its answer, while the handler had not ended yet.
func TestCanceled(t *testing.T) {
	r := start(t, inMemory(t), nil)
	for _, test := range []struct {
		before, answers bool
		status          int
		problem, about  string
	}{
		{false, true, 400, "invalid", "after its answer"},
		{true, true, 0, "canceled", "before its answer, which nobody reads"},
		{true, false, 0, "canceled", "before its answer"},
	} {
		var got Call
		r.server.hooks.Call = func(c Call) { got = c }
		ctx, leave := context.WithCancel(t.Context())
		r.server.logged(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if test.before {
				leave()
			}
			if test.answers {
				exchangeOf(r.Context()).call.Problem = "invalid"
				w.WriteHeader(400)
			}
			leave()
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "POST", "/v1/claim", nil))
		if got.Status != test.status || got.Problem != test.problem {
			t.Errorf("the client leaves %s: %d %s; want %d %s", test.about, got.Status, got.Problem, test.status, test.problem)
		}
	}
}
