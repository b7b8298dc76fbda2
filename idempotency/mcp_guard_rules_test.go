package idempotency_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

var mcpGuardRules = []rule{
	{"A call counts for one tool at one target", callsCountForOneTarget},
	{"No message ends a call", noMessageEndsACall},
	{"No message ends a call", callsEndWithTheirSession},
	{"Only the response is bounded", onlyTheResponseIsBounded},
	{"A message is read in one way", messagesAreReadInOneWay},
	{"A window for an unknown tool is logged", windowsOfUnknownTools},
	{"A handle of a task is a result", handlesOfTasks},
}

// callsCountForOneTarget: neither another query nor another path, host or tool gets the result of a call,
// wherever the key comes from.
func callsCountForOneTarget(t *testing.T) {
	for name, change := range map[string]func(*idempotency.Options){
		"a key in _meta":     nil,
		"a key per request":  func(o *idempotency.Options) { o.KeyPer = idempotency.KeyPerRequest },
		"a key in a header":  func(o *idempotency.Options) { o.Key = idempotency.KeyHeader("X-Call") },
		"a key of arguments": func(o *idempotency.Options) { o.Key = idempotency.KeyJSON("/params/arguments/to") },
		"a window": func(o *idempotency.Options) {
			o.Key = idempotency.KeyHeader("X-None")
			o.MCP.ToolWindows = map[string]time.Duration{"charge": time.Minute, "refund": time.Minute}
		},
	} {
		g := newMCP(t, change, "")
		call := callOf("1", "k", chargeParams)
		for i, other := range []change2{
			{call, withTarget("/mcp?api_key=alice")},
			{call, withTarget("/mcp?api_key=bob")},
			{call, withTarget("/mcp?api_key=bob&api_key=alice")},
			{call, withTarget("/mcp")},
			{call, withTarget("/other")},
			{call, withHost("another.example")},
			{callOf("1", "k", strings.Replace(chargeParams, "charge", "refund", 1)), withTarget("/mcp")},
		} {
			run := fmt.Sprintf("run %d", i+1)
			w := g.send(other[0], with("X-Call", "k"), other[1])
			if isFresh(t, w, http.StatusOK); !strings.Contains(w.Body.String(), run) {
				t.Errorf("%s: request %d is answered %q; want %s", name, i, w.Body, run)
			}
			isReplayTo(t, g.send(other[0], with("X-Call", "k"), other[1]), "1", run)
		}
		g.ran(7)
	}
}

// change2 is a call and where it is sent.
type change2 = [2]change

// cancels is a notification that cancels a request.
func cancels(id string) change {
	return rpc(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s,"reason":"timeout"}}`, id))
}

// newCancelled returns a rig with a server whose call runs until release is closed. It notes what else
// it gets.
func newCancelled(t *testing.T, o *idempotency.Options) (g *rig, others chan string, entered, release chan struct{}) {
	t.Helper()
	others, entered, release = make(chan string, 20), make(chan struct{}, 20), make(chan struct{})
	g = newRig(t, o, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		if !bytes.Contains(text, []byte("tools/call")) {
			others <- r.Method + " " + string(text)
			return
		}
		entered <- struct{}{}
		<-release
		streaming(response)(w, r)
	})
	return g, others, entered, release
}

// noMessageEndsACall: a cancellation that names a guarded call which runs is accepted and not passed on.
// Every other one passes.
func noMessageEndsACall(t *testing.T) {
	withSession := func(id string) change { return with("Mcp-Session-Id", id) }
	o := idempotency.MCPOptions()
	o.MCP.ToolWindows = map[string]time.Duration{"pay": time.Minute}
	g, others, entered, release := newCancelled(t, o)
	ended := make(chan struct{}, 3)
	run := func(call change, more ...change) {
		go func() {
			g.send(append([]change{call}, more...)...)
			ended <- struct{}{}
		}()
		testkit.Await(t, "a call runs", entered)
	}
	run(callOf("7", "k", chargeParams), withSession("a"))
	run(callOf(`"x"`, "", strings.Replace(chargeParams, "charge", "pay", 1)))
	run(callOf("8", "", chargeParams), withSession("a")) // without a guard
	held := []struct {
		message change
		to      change
	}{
		{cancels("7"), withSession("a")}, {cancels(`"7"`), withSession("a")}, {cancels("70e-1"), withSession("a")}, {cancels(`"x"`), withSession("")},
		{cancels(`"\u0078"`), withSession("")},
		{rpc(`[{"jsonrpc":"2.0","method":"ping"},{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}]`), withSession("a")},
	}
	for i, m := range held {
		if w := g.send(m.message, m.to); w.Code != http.StatusAccepted || w.Body.Len() > 0 {
			t.Errorf("cancellation %d is answered %d %q; want 202", i, w.Code, w.Body)
		}
		if e := g.last(); e.Kind != idempotency.EventHeldBack || e.Status != http.StatusAccepted {
			t.Errorf("cancellation %d is observed as %+v", i, e)
		}
	}
	if len(others) > 0 {
		t.Errorf("the server got %q", <-others)
	}
	passing := []struct {
		message change
		to      change
	}{
		{cancels("8"), withSession("a")}, {cancels("7"), withSession("b")}, {cancels("7"), withSession("")}, {cancels("9"), withSession("a")}, {cancels(`"x"`), with("Authorization", "Bearer b")},
	}
	for i, m := range passing {
		g.send(m.message, m.to)
		if text := testkit.Await(t, "the server gets the cancellation", others); !strings.Contains(text, "cancelled") {
			t.Errorf("cancellation %d became %q", i, text)
		}
	}
	close(release)
	for range 3 {
		testkit.Await(t, "the call ends", ended)
	}
	isReplayTo(t, g.send(callOf("9", "k", chargeParams)), "9", "content")
	g.send(cancels("7"), withSession("a")) // of what has ended
	testkit.Await(t, "the server gets the cancellation", others)
}

// callsEndWithTheirSession: a session in which a guarded call runs cannot be ended. Servers end the
// calls of a session with it.
func callsEndWithTheirSession(t *testing.T) {
	o := idempotency.MCPOptions()
	o.Methods = []string{http.MethodPost}
	g, others, entered, release := newCancelled(t, o)
	ended := make(chan struct{})
	go func() {
		g.send(callOf("1", "k", chargeParams), with("Mcp-Session-Id", "a"))
		close(ended)
	}()
	testkit.Await(t, "the call runs", entered)
	end := func(session ...string) *change {
		c := change(func(r *http.Request) {
			rpc("")(r)
			withMethod(http.MethodDelete)(r)
			with("Mcp-Session-Id", session...)(r)
		})
		return &c
	}
	w := g.send(*end("a"))
	if isError(t, w, "session-in-use", http.StatusMethodNotAllowed, "null"); w.Result().Header.Get("Allow") != "GET, POST" {
		t.Errorf("the methods are %q", w.Result().Header["Allow"])
	}
	if e := g.last(); e.Kind != idempotency.EventHeldBack {
		t.Errorf("observed %+v", e)
	}
	g.send(*end("b"))
	g.send(*end())
	for range 2 {
		testkit.Await(t, "another session ends", others)
	}
	close(release)
	testkit.Await(t, "the call ends", ended)
	g.send(*end("a"))
	testkit.Await(t, "the session ends", others)
}

// onlyTheResponseIsBounded: what passes before the response, and how long that is, changes nothing. A
// failure is read whatever its length.
func onlyTheResponseIsBounded(t *testing.T) {
	long := strings.Repeat("x", 5000)
	many := strings.Repeat(progress, 100)
	event := func(text string) string { return "data: " + text + "\n\n" }
	one := event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + long + `"}}`)
	result := func(content, more string) string {
		return event(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"` + content + `"}]` + more + `}}`)
	}
	const replayed, again, tombstone, unknown = "replayed", "again", "answer-not-kept", "outcome-unknown"
	for name, test := range map[string]struct {
		parts []string
		want  string
	}{
		"many notifications and a result":     {[]string{many, result("small", "")}, replayed},
		"a long notification and a result":    {[]string{one, result("small", "")}, replayed},
		"notifications and a failure":         {[]string{many, result("small", `,"isError":true`)}, again},
		"notifications and an error":          {[]string{one, event(`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`)}, again},
		"notifications and a question":        {[]string{many, result("small", `,"resultType":"input_required"`)}, again},
		"notifications alone":                 {[]string{many, one}, unknown},
		"a comment that is long":              {[]string{": " + long + "\n\n", result("small", "")}, replayed},
		"an event of another name":            {[]string{"event: other\n" + result(long, ""), result("small", "")}, replayed},
		"a result and notifications":          {[]string{result("small", ""), many, one}, replayed},
		"two results, one of them long":       {[]string{result("small", ""), result(long, "")}, unknown},
		"a long result":                       {[]string{many, result(long, "")}, tombstone},
		"a long failure":                      {[]string{result(long, `,"isError":true`)}, again},
		"a long error":                        {[]string{event(`{"error":{"code":1,"message":"` + long + `"},"id":1}`)}, again},
		"a long result that broke off":        {[]string{strings.TrimSuffix(result(long, ""), "}\n\n")}, unknown},
		"a result of many members":            {[]string{result(long, strings.Repeat(`,"a":1`, 20_000))}, tombstone},
		"one message, which is a failure":     {[]string{strings.TrimPrefix(result(long, `,"isError":true`), "data: ")}, again},
		"one message, which is a long result": {[]string{strings.TrimPrefix(result(long, ""), "data: ")}, tombstone},
	} {
		for _, flushes := range []bool{true, false} {
			o := idempotency.MCPOptions()
			o.MaxStored = 4096
			g := newRig(t, o, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				if !strings.Contains(test.parts[0], "\n\n") || strings.HasPrefix(test.parts[0], "{") {
					w.Header().Set("Content-Type", "application/json")
				}
				if flushes {
					streaming := http.NewResponseController(w)
					for _, part := range test.parts {
						_, _ = io.WriteString(w, part)
						_ = streaming.Flush()
					}
					return
				}
				_, _ = io.WriteString(w, strings.Join(test.parts, ""))
			})
			if w := g.send(callOf("1", "k", chargeParams)); w.Body.String() != strings.Join(test.parts, "") {
				t.Errorf("%s: the first client got %d bytes", name, w.Body.Len())
			}
			w := g.send(callOf("2", "k", chargeParams))
			switch test.want {
			case replayed:
				isReplayTo(t, w, "2", "small")
			case again:
				isFresh(t, w, http.StatusOK)
			case tombstone:
				isError(t, w, tombstone, http.StatusGone, "2")
			case unknown:
				isError(t, w, unknown, http.StatusConflict, "2")
			}
			if want := map[bool]int64{true: 2, false: 1}[test.want == again]; g.runs.Load() != want {
				t.Errorf("%s: the call ran %d times; want %d", name, g.runs.Load(), want)
			}
		}
	}
}

// messagesAreReadInOneWay: a message in which a reader that ignores case would find other members is
// refused, and runs nothing.
func messagesAreReadInOneWay(t *testing.T) {
	g := newMCP(t, func(o *idempotency.Options) { o.RequireKey = true }, "")
	for id, bodies := range map[string][]string{"null": {
		`{"jsonrpc":"2.0","id":1,"method":"ping","METHOD":"tools/call","params":{"name":"charge"}}`,
		`{"jsonrpc":"2.0","id":1,"Method":"tools/call","method":"ping","params":{"name":"charge"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"Method":"tools/call","params":{"name":"charge"}}`,
		`{"jsonrpc":"2.0","id":1,"error":{},"mETHOD":"tools/call","params":{"name":"charge"}}`,
		`{"jsonrpc":"2.0","id":1,"ID":2,"method":"tools/call","params":{"name":"charge"}}`,
		`[{"jsonrpc":"2.0","id":1,"method":"ping","METHOD":"tools/call","params":{"name":"charge"}}]`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"requestid":2}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get"},"Params":{"name":"charge"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get"},"param` + "\u017f" + `":{"name":"charge"}}`,
	}, "1": {
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get","NAME":"charge"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get","arguments":{},"Arguments":{"a":1}}}`,
	}} {
		for _, body := range bodies {
			isError(t, g.send(rpc(body)), "body-unreadable", http.StatusBadRequest, id)
		}
	}
	g.ran(0)
	isError(t, g.send(rpc(`{"jsonrpc":"2.0","id":1,"method":"Tools/Call","params":{"name":"charge"}}`)), "key-required", http.StatusBadRequest, "1")
	call := callOf("1", "", chargeParams)
	isError(t, g.send(call, withMethod(http.MethodGet), with("X-HTTP-Method-Override", "POST")), "key-required", http.StatusBadRequest, "1")
	g.ran(0)
	isFresh(t, g.send(callOf("1", "k", `"name":"charge","arguments":{"id":1,"ID":2}`)), http.StatusOK) // whose members are compared
}

// windowsOfUnknownTools: a window for a tool that neither a list nor a call has named is logged, once a
// list is complete or another tool is called.
func windowsOfUnknownTools(t *testing.T) {
	list := func(cursor string, names ...string) string {
		tools := make([]map[string]string, len(names))
		for i, name := range names {
			tools[i] = map[string]string{"name": name}
		}
		text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "result": map[string]any{"tools": tools, "nextCursor": cursor}})
		testkit.Must(t, err)
		return string(text)
	}
	asList := rpc(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	for _, test := range []struct {
		windows string // the tools, without their times
		answers []string
		calls   []string
		want    string // that are logged
	}{
		{"chagre", []string{list("", "charge", "refund")}, nil, "chagre"},
		{"chagre", []string{list("", "charge"), list("", "charge")}, []string{"charge", "charge"}, "chagre"},
		{"charge chagre", []string{"event: message\ndata: " + list("", "charge") + "\n\n"}, nil, "chagre"},
		{"charge refund", []string{list("next", "charge"), list("", "refund")}, []string{"get"}, ""},
		{"charge chagre", []string{list("next", "charge"), list("", "refund")}, nil, "chagre"},
		{"chagre", nil, []string{"charge"}, "chagre"},
		{"charge refund", nil, []string{"charge"}, ""},
		{"charge refund", nil, []string{"charge", "refund", "get"}, ""},
		{"charge", []string{`{"jsonrpc":"2.0","id":1,"error":{}}`, `{"jsonrpc":"2.0","id":1,"result":{}}`, "no list"}, nil, ""},
		{"", []string{list("", "charge")}, []string{"charge"}, ""},
	} {
		log, logger := newLogger()
		o := idempotency.MCPOptions()
		o.Logger, o.Scope = logger, []idempotency.ScopePart{idempotency.ScopeNone}
		for tool := range strings.FieldsSeq(test.windows) {
			if o.MCP.ToolWindows == nil {
				o.MCP.ToolWindows = make(map[string]time.Duration)
			}
			o.MCP.ToolWindows[tool] = time.Minute
		}
		var answer string
		g := newRig(t, o, func(w http.ResponseWriter, r *http.Request) {
			if accepts := r.Header.Get("Accept-Encoding"); len(test.windows) > 0 && answer != "" && accepts != "identity" {
				t.Errorf("the server is asked for a list in the encodings %q", accepts)
			}
			if w.Header().Set("Content-Type", "application/json"); strings.HasPrefix(answer, "event") {
				w.Header().Set("Content-Type", "text/event-stream")
			}
			_, _ = io.Copy(w, strings.NewReader(answer))
		})
		for _, answer = range test.answers {
			if w := g.send(asList, with("Accept-Encoding", "gzip")); w.Body.String() != answer {
				t.Errorf("the list became %q", w.Body)
			}
		}
		answer = ""
		for _, tool := range test.calls {
			g.send(callOf("1", "", fmt.Sprintf(`"name":%q`, tool)))
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		var logged []string
		for _, line := range lines {
			if _, name, ok := strings.Cut(line, " tool="); ok {
				name, _, _ = strings.Cut(name, " ")
				logged = append(logged, name)
			}
		}
		if got := strings.Join(logged, " "); got != test.want {
			t.Errorf("windows for %q, the lists %q and calls of %q: logged %q; want %q", test.windows, test.answers, test.calls, got, test.want)
		}
	}
}

// handlesOfTasks: a retry gets the handle of the first call's task, which runs once.
func handlesOfTasks(t *testing.T) {
	for result, runs := range map[string]int64{
		`{"resultType":"task","taskId":"t","status":"working"}`:           1,
		`{"resultType":"task","taskId":"t","status":"input_required"}`:    1, // which tasks/update brings
		`{"task":{"taskId":"t","status":"working","ttl":60000}}`:          1, // 2025-11-25
		`{"resultType":"task","taskId":"t","status":"failed","error":{}}`: 2,
		`{"resultType":"task","taskId":"t","status":"cancelled"}`:         2,
		`{"task":{"taskId":"t","status":"failed"}}`:                       2,
		`{"content":[],"status":"failed"}`:                                1,
	} {
		g := newMCP(t, nil, `"result":`+result)
		g.send(callOf("1", "k", chargeParams))
		g.send(callOf("2", "k", chargeParams))
		if g.runs.Load() != runs {
			t.Errorf("%s: the call ran %d times; want %d", result, g.runs.Load(), runs)
		}
	}
}
