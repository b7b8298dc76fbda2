package idempotency_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
)

var mcpRules = []rule{
	{"Only calls of tools are guarded", onlyCallsOfTools},
	{"The key of a call is in its _meta", keysOfCalls},
	{"A tool can have a window in place of a key", inBubble(windowsOfTools)},
	{"Two calls are compared by their params", callsAreComparedByParams},
	{"A replay has the id of the new request", replaysHaveTheNewID},
	{"A replay has the id of the new request", replaysOfStreams},
	{"Only results are kept", onlyResultsAreKept},
	{"A call without a result has no outcome", callsWithoutAResult},
	{"The client's hang-up does not cancel a call", inBubble(duplicatesOfCallsWait)},
	{"What is not a plain call is refused", whatIsNoPlainCall},
	{"Refusals are errors of JSON-RPC", refusalsAreJSONRPC},
}

// callOf is a request with a call of a tool.
func callOf(id, key, params string) change {
	meta := ""
	if key != "" {
		meta = fmt.Sprintf(`"_meta":{"progressToken":%s,%q:%q},`, id, idempotency.MCPKey, key)
	}
	return rpc(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{%s%s}}`, id, meta, params))
}

// rpc is a request with a message.
func rpc(text string) change {
	return func(r *http.Request) {
		withBody(text)(r)
		with("Idempotency-Key")(r)
		with("Accept", "application/json, text/event-stream")(r)
	}
}

const chargeParams = `"name":"charge","arguments":{"amount":12,"to":"a"}`

// newMCP returns a rig with a server that answers each call with its id and the number of the run; with
// the result as text, unless "".
func newMCP(t *testing.T, change func(*idempotency.Options), result string) *rig {
	t.Helper()
	o := idempotency.MCPOptions()
	if change != nil {
		change(o)
	}
	var g *rig
	g = newRig(t, o, func(w http.ResponseWriter, r *http.Request) {
		var m struct{ ID json.RawMessage }
		_ = json.NewDecoder(r.Body).Decode(&m)
		text := result
		if text == "" {
			text = fmt.Sprintf(`"result":{"content":[{"type":"text","text":"run %d"}]}`, g.runs.Load())
		}
		w.Header().Set("Content-Type", "application/json")
		for _, name := range []string{"Mcp-Session-Id", "Content-Digest", "ETag"} {
			w.Header().Set(name, "of this message")
		}
		_, _ = fmt.Fprintf(w, "{ \"jsonrpc\": \"2.0\", %s , \"id\" :  %s }\n", text, m.ID)
	})
	return g
}

func onlyCallsOfTools(t *testing.T) {
	g := newMCP(t, func(o *idempotency.Options) { o.RequireKey = true }, "")
	passing := []change{
		rpc(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`),
		rpc(`{"jsonrpc":"2.0","method":"notifications/initialized"}`),
		rpc(`{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`),
		rpc(`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"declined"}}`),
		rpc(`[{"jsonrpc":"2.0","id":1,"method":"tools/list"},{"jsonrpc":"2.0","method":"notifications/progress"}]`),
		func(r *http.Request) {
			rpc(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)(r)
			with("Mcp-Method", "tools/call")(r)
		},
		func(r *http.Request) { rpc("")(r); withMethod(http.MethodDelete)(r) },
		func(r *http.Request) {
			rpc("")(r)
			withMethod(http.MethodGet)(r)
			with("Last-Event-Id", "7")(r)
		},
	}
	for i, message := range passing {
		isFresh(t, g.send(message), http.StatusOK)
		isFresh(t, g.send(message), http.StatusOK)
		g.ran(int64(2 * (i + 1)))
	}
	g.runs.Store(0)
	g.send(callOf("1", "k", chargeParams), with("Mcp-Method", "tools/list"))
	isReplayTo(t, g.send(callOf("2", "k", chargeParams), with("Mcp-Method", "tools/list")), "2", "run 1")
	g.ran(1)
}

// isReplayTo checks that w is a replay with that id and text.
func isReplayTo(t *testing.T, w *httptest.ResponseRecorder, id, text string) {
	t.Helper()
	var m struct{ ID, Result json.RawMessage }
	if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil || string(m.ID) != id || !strings.Contains(string(m.Result), text) {
		t.Errorf("answered %d %q; want the id %s and %q", w.Code, w.Body, id, text)
	}
	if w.Result().Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("no replay: %q", w.Body)
	}
}

func keysOfCalls(t *testing.T) {
	for _, test := range []struct {
		key   idempotency.KeyFunc
		first change
		again change
		runs  int64
	}{
		{nil, callOf("1", "k", chargeParams), callOf("2", "k", chargeParams), 1},
		{nil, callOf("1", "k", chargeParams), callOf("2", "l", chargeParams), 2},
		{nil, callOf("1", "", chargeParams), callOf("2", "", chargeParams), 2},
		{idempotency.KeyJSON("/params/arguments/to"), callOf("1", "", chargeParams), callOf("2", "", chargeParams), 1},
		{idempotency.KeyJSON("/params/_meta/progressToken"), callOf("1", "k", chargeParams), callOf("1", "l", chargeParams), 1},
	} {
		g := newMCP(t, func(o *idempotency.Options) {
			if test.key != nil {
				o.Key = test.key
			}
		}, "")
		isFresh(t, g.send(test.first), http.StatusOK)
		g.send(test.again)
		g.ran(test.runs)
	}
	g := newMCP(t, func(o *idempotency.Options) { o.Key = idempotency.KeyHeader("X-Call") }, "")
	g.send(callOf("1", "", chargeParams), with("X-Call", "k"))
	isReplayTo(t, g.send(callOf("2", "", chargeParams), with("X-Call", "k")), "2", "run 1")
	g = newMCP(t, func(o *idempotency.Options) { o.RequireKey = true }, "")
	isError(t, g.send(callOf(`"a"`, "", chargeParams)), "key-required", http.StatusBadRequest, `"a"`)
	isError(t, g.send(callOf(`"a"`, strings.Repeat("k", 256), chargeParams)), "key-invalid", http.StatusBadRequest, `"a"`)
	g.ran(0)
}

func windowsOfTools(t *testing.T) {
	g := newMCP(t, func(o *idempotency.Options) {
		o.RequireKey = true
		o.MCP.ToolWindows = map[string]time.Duration{"charge": 10 * time.Minute}
	}, "")
	isFresh(t, g.send(callOf("1", "", chargeParams)), http.StatusOK)
	isReplayTo(t, g.send(callOf("2", "", chargeParams)), "2", "run 1")
	isFresh(t, g.send(callOf("3", "", chargeParams), with("Authorization", "Bearer b")), http.StatusOK)
	isFresh(t, g.send(callOf("4", "", strings.Replace(chargeParams, "12", "13", 1))), http.StatusOK)
	isFresh(t, g.send(callOf("5", "k", chargeParams)), http.StatusOK)
	g.ran(4)
	isError(t, g.send(callOf("6", "", strings.Replace(chargeParams, "charge", "refund", 1))), "key-required", http.StatusBadRequest, "6")
	time.Sleep(11 * time.Minute)
	isFresh(t, g.send(callOf("7", "", chargeParams)), http.StatusOK)
	isReplayTo(t, g.send(callOf("8", "k", chargeParams)), "8", "run 4") // whose key has the usual retention
	g.ran(5)
	// An unknown outcome outlasts the window.
	o := idempotency.MCPOptions()
	o.MCP.ToolWindows = map[string]time.Duration{"charge": 10 * time.Minute}
	g = newRig(t, o, streaming(progress))
	g.send(callOf("1", "", chargeParams))
	time.Sleep(time.Hour)
	isError(t, g.send(callOf("2", "", chargeParams)), "outcome-unknown", http.StatusConflict, "2")
	g.ran(1)
}

func callsAreComparedByParams(t *testing.T) {
	g := newMCP(t, nil, "")
	g.send(callOf("1", "k", chargeParams+`,"task":{"ttl":1}`))
	for _, same := range []string{chargeParams + `,"task":{"ttl":1}`, `"arguments": {"to":"\u0061", "amount":1.2e1},"task":{"ttl":1},"name":"charge"`} {
		isReplayTo(t, g.send(callOf("2", "k", same), with("Mcp-Name", "x"), with("Content-Type", "application/json; charset=utf-8")), "2", "run 1")
	}
	for _, other := range []string{chargeParams, strings.Replace(chargeParams, "12", "13", 1), chargeParams + `,"task":{"ttl":2}`, chargeParams + `,"task":{"ttl":1},"requestState":"s"`} {
		isError(t, g.send(callOf("3", "k", other)), "key-reused", http.StatusUnprocessableEntity, "3")
	}
	odd := `"name":"say","arguments":{"text":"\ud83d"}` // half of a character, as models write it
	g.send(callOf("4", "odd", odd))
	isReplayTo(t, g.send(callOf("5", "odd", strings.Replace(odd, ":{", ": {", 1))), "5", "run 2")
	isError(t, g.send(callOf("6", "odd", strings.Replace(odd, "d83d", "d83e", 1))), "key-reused", http.StatusUnprocessableEntity, "6")
}

func replaysHaveTheNewID(t *testing.T) {
	g := newMCP(t, nil, "")
	first := g.send(callOf("1", "k", chargeParams)).Body.String()
	for _, id := range []string{"2", "-3", "1.50", "1e400", "12345678901234567890", `""`, `"a"`, `"\u0061\"id\":1"`, `"<é>"`} {
		w := g.send(callOf(id, "k", chargeParams))
		if want := strings.Replace(first, `"id" :  1`, `"id" :  `+id, 1); w.Body.String() != want {
			t.Errorf("the id %s is answered %q; want %q", id, w.Body, want)
		}
		for _, name := range []string{"Mcp-Session-Id", "Content-Digest", "ETag"} {
			if w.Result().Header.Get(name) != "" {
				t.Errorf("a replay has the %s of the first call", name)
			}
		}
	}
	w := g.send(callOf("2", "k", chargeParams), with("Accept", "text/event-stream"))
	if want := "event: message\ndata: " + strings.Replace(strings.TrimSuffix(first, "\n"), ":  1", ":  2", 1) + "\ndata: \n\n"; w.Body.String() != want || w.Result().Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("a client that accepts only a stream gets %q; want %q", w.Body, want)
	}
	g.ran(1)
	for _, accept := range []string{"*/*", "text/event-stream, */*", "application/*", "application/json;q=0.1, text/event-stream"} {
		isReplayTo(t, g.send(callOf("2", "k", chargeParams), with("Accept", accept)), "2", "run 1")
	}
	// A compressed body is read as any other.
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	r := request(callOf("9", "k", chargeParams))
	_, _ = io.Copy(z, r.Body)
	_ = z.Close()
	isReplayTo(t, g.send(rpc(b.String()), with("Content-Encoding", "gzip")), "9", "run 1")
}

// streaming answers with an event stream, and flushes each part.
func streaming(parts ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, part := range parts {
			_, _ = io.WriteString(w, part)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

const (
	progress = "event: message\nid: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":1}}\n\n"
	elicit   = "id: 2\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"elicitation/create\",\"params\":{}}\n\n"
	response = "event: message\nid: 3\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[]}}\n\n"
)

func replaysOfStreams(t *testing.T) {
	for _, parts := range [][]string{
		{response},
		{"\ufeffid: 0\nretry: 10\ndata:\n\n", progress, ": ping\n\n", elicit, response},
		{progress, "event: other\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n", strings.ReplaceAll(response, "\n", "\r\n"), progress},
		{strings.ReplaceAll(progress+response, "\n", "\r")},
		{strings.Replace(response, `,"result"`, ",\ndata:\"result\"", 1)},
		{strings.TrimSuffix(response, "\n\n")},
		{"\ufeff" + strings.TrimPrefix(response, "event: message\nid: 3\n")},
	} {
		g := newRig(t, idempotency.MCPOptions(), streaming(parts...))
		if w := g.send(callOf("1", "k", chargeParams)); w.Body.String() != strings.Join(parts, "") {
			t.Errorf("the first client got %q; want %q", w.Body, parts)
		}
		w := g.send(callOf("2", "k", chargeParams))
		isReplayTo(t, w, "2", `{"content":[]}`)
		if strings.Contains(w.Body.String(), "progress") {
			t.Errorf("the second client got what belongs to the first: %q", w.Body)
		}
		w = g.send(callOf("3", "k", chargeParams), with("Accept", "text/event-stream"))
		want := strings.Replace(strings.Replace(response, "id: 3\n", "", 1), `"id":1`, `"id":3`, 1)
		if text := strings.Replace(w.Body.String(), ",\ndata: \"result", ",\"result", 1); text != want {
			t.Errorf("a client that accepts only a stream gets %q; want %q", w.Body, want)
		}
		g.ran(1)
	}
}

func onlyResultsAreKept(t *testing.T) {
	failed := `"result":{"content":[],"isError":true}`
	for _, test := range []struct {
		result string
		keep   []string
		runs   int64
	}{
		{`"result":{"isError":false,"resultType":"complete"}`, nil, 1},
		{`"result":{"isError":"odd"}`, nil, 1},
		{`"result":null`, nil, 1},
		{failed, nil, 2},
		{failed, []string{"2xx", "500"}, 1},
		{`"error":{"code":-32603,"message":"x"}`, nil, 2},
		{`"result":{"resultType":"input_required","requestState":"s"}`, nil, 2},
		{`"result":{"resultType":"task","taskId":"t"}`, nil, 1},
		{`"result":{"isError":true,"iserror":false}`, nil, 2},
		{`"result":{"isError":false,"iserror":true,"resulttype":"input_required"}`, nil, 1},
		{`"result":{"content":[]},"error":null`, nil, 1}, // as programs that write every member do
		{`"result":null,"error":{"code":-32603,"message":"x"}`, nil, 2},
		{`"error":{"code":-32603,"message":"x"},"result":{"isError":false}`, nil, 2},
	} {
		g := newMCP(t, func(o *idempotency.Options) {
			if test.keep != nil {
				o.Keep = test.keep
			}
		}, test.result)
		g.send(callOf("1", "k", chargeParams))
		g.send(callOf("2", "k", chargeParams))
		g.ran(test.runs)
	}
	// The client brings the input under the same key.
	var g *rig
	status := http.StatusOK
	g = newRig(t, idempotency.MCPOptions(), func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"`+map[bool]string{true: "input_required", false: "complete"}[g.runs.Load() == 1]+`"}}`)
	})
	g.send(callOf("1", "k", chargeParams))
	answered := chargeParams + `,"inputResponses":{"a":{}},"requestState":"s"`
	isFresh(t, g.send(callOf("2", "k", answered)), http.StatusOK)
	isReplayTo(t, g.send(callOf("3", "k", answered)), "3", "complete")
	isError(t, g.send(callOf("4", "k", chargeParams)), "key-reused", http.StatusUnprocessableEntity, "4")
	g.ran(2)
	// An answer that is not a result is not kept, such as that of a session which has ended.
	for _, status = range []int{400, 401, 403, 404, 500, 503} {
		isFresh(t, g.send(callOf("1", "other", chargeParams)), status)
	}
	status = http.StatusOK
	isFresh(t, g.send(callOf("1", "other", chargeParams)), http.StatusOK)
}

func callsWithoutAResult(t *testing.T) {
	for _, handler := range []http.HandlerFunc{
		streaming(progress),
		streaming(progress, response, response),
		streaming(strings.Replace(response, "}}", "}", 1)),
		streaming(strings.Replace(response, `"id":1,`, "", 1)),
		streaming(strings.Replace(response, `"id":1,`, `"id":1,"id":2,`, 1)),
		streaming(strings.Replace(response, "{\"jsonrpc", "[{\"jsonrpc", 1)),
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) },
		func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") },
	} {
		g := newRig(t, idempotency.MCPOptions(), handler)
		first := g.send(callOf("1", "k", chargeParams))
		if first.Code >= 300 {
			t.Errorf("the first client is answered %d %q", first.Code, first.Body)
		}
		isError(t, g.send(callOf("2", "k", chargeParams)), "outcome-unknown", http.StatusConflict, "2")
		g.ran(1)
		o := idempotency.MCPOptions()
		o.OnCrash = idempotency.TakeOver
		g = newRig(t, o, handler)
		g.send(callOf("1", "k", chargeParams))
		g.send(callOf("2", "k", chargeParams))
		g.ran(2)
	}
	// The origin is asked for no encoding, in which a result could not be read.
	g := newRig(t, idempotency.MCPOptions(), func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":{"accept":%q}}`, r.Header.Get("Accept-Encoding"))
	})
	g.send(callOf("1", "k", chargeParams), with("Accept-Encoding", "gzip"))
	isReplayTo(t, g.send(callOf("2", "k", chargeParams), with("Accept-Encoding", "gzip")), "2", `{"accept":"identity"}`)
}

func duplicatesOfCallsWait(t *testing.T) {
	release := make(chan struct{})
	g := newRig(t, idempotency.MCPOptions(), func(w http.ResponseWriter, r *http.Request) {
		streaming(progress)(w, r)
		<-release
		if r.Context().Err() != nil {
			t.Error("the run was cancelled with its client")
		}
		streaming(response)(w, r)
	})
	ctx, hangUp := context.WithCancel(t.Context())
	go g.send(callOf("1", "k", chargeParams), func(r *http.Request) { *r = *r.WithContext(ctx) })
	synctest.Wait()
	hangUp()
	answers := make(chan *httptest.ResponseRecorder, 3)
	for _, id := range []string{"2", "3", "4"} {
		go func() { answers <- g.send(callOf(id, "k", chargeParams)) }()
	}
	synctest.Wait()
	close(release)
	var seen []string
	for range 3 {
		w := <-answers
		var m struct{ ID json.Number }
		_ = json.Unmarshal(w.Body.Bytes(), &m)
		isReplayTo(t, w, m.ID.String(), "content")
		seen = append(seen, m.ID.String())
	}
	for _, id := range []string{"2", "3", "4"} {
		if !slices.Contains(seen, id) {
			t.Errorf("the ids %q were answered; %s was not", seen, id)
		}
	}
	g.ran(1)
}

func whatIsNoPlainCall(t *testing.T) {
	g := newMCP(t, nil, "")
	call := strings.ReplaceAll(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{`+chargeParams+`,"_meta":{"KEY":"k"}}}`, "KEY", idempotency.MCPKey)
	id := func(to string) string { return strings.Replace(call, `"id":1,`, to, 1) }
	for _, body := range []string{
		id(""), id(`"id":null,`), id(`"id":true,`), id(`"id":{},`), id(`"id":[1],`),
		"[" + call + "]", `[{"jsonrpc":"2.0","id":1,"method":"tools/list"},` + id("") + "]",
	} {
		isError(t, g.send(rpc(body)), "call-refused", http.StatusBadRequest, "null")
	}
	for body, id := range map[string]string{
		"": "null", "{": "null", "1": "null", "null": "null", "{}": "null", "[1]": "null", "[{}]": "null", call + call: "1", "\ufeff" + call: "null",
		strings.Replace(call, `"method"`, `"Method"`, 1):                       "null",
		strings.Replace(call, `"method"`, `"method":"tools/list","method"`, 1): "null",
		strings.Replace(call, `"name"`, `"name":"refund","name"`, 1):           "1",
		strings.Replace(call, `"charge"`, `7`, 1):                              "1",
		strings.Replace(call, `"charge"`, "\"\xff\"", 1):                       "null",
		strings.Replace(call, `"name"`, `"\ud800":1,"name"`, 1):                "1", // beside \ud801 they would be equal
		strings.Replace(call, `"tools/call"`, `["tools/call"]`, 1):             "1",
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}`:          "1",
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`:                       "1",
	} {
		isError(t, g.send(rpc(body)), "body-unreadable", http.StatusBadRequest, id)
	}
	isError(t, g.send(rpc(call), with("Content-Encoding", "br")), "body-unreadable", http.StatusBadRequest, "null")
	isError(t, g.send(rpc(strings.Replace(call, `:"k"`, `:"k","`+idempotency.MCPKey+`":"l"`, 1))), "key-invalid", http.StatusBadRequest, "1")
	g.ran(0)
}

func refusalsAreJSONRPC(t *testing.T) {
	g := newMCP(t, func(o *idempotency.Options) { o.MaxBody = 400 }, "")
	isError(t, g.send(callOf("1", "k", chargeParams+`,"a":"`+strings.Repeat("x", 400)+`"`)), "body-too-large", http.StatusRequestEntityTooLarge, "null")
	g.store.fail(failing("claim", errDown))
	isError(t, g.send(callOf(`"x"`, "k", chargeParams)), "store-unavailable", http.StatusServiceUnavailable, `"x"`)
	g.ran(0)
}

// TestWhatACallBecomesIsCounted: the memory that reading a call takes is part of MaxBodyMemory: its
// params are held three times. A call that finds no room now is asked for again.
func TestWhatACallBecomesIsCounted(t *testing.T) {
	for name, value := range map[string]string{
		"a long text":       `"` + strings.Repeat("x", 900<<10) + `"`,
		"no canonical form": strings.Repeat("[", 200) + strings.Repeat("1,", 450<<10) + "1" + strings.Repeat("]", 200),
	} {
		long := callOf("1", "k", `"name":"say","arguments":{"text":`+value+`}`)
		for most, status := range map[int64]int{5 << 20: http.StatusRequestEntityTooLarge, 11 << 20: http.StatusOK} {
			gate := newGate()
			o := idempotency.MCPOptions()
			o.MaxBodyMemory = most
			g := newRig(t, o, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Then") == "waits" {
					gate.ServeHTTP(w, r)
				}
				_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
			})
			if w := g.send(long); w.Code != status {
				t.Errorf("%s: with %d bytes it is answered %d; want %d", name, most, w.Code, status)
			}
			var running sync.WaitGroup
			for i := range most >> 20 / 11 * 3 {
				running.Go(func() {
					g.send(callOf("2", fmt.Sprint(i), `"name":"say","arguments":{"text":`+value+`}`), with("X-Then", "waits"))
				})
				<-gate.entered
			}
			if w := g.send(long); w.Code/100 == 2 || w.Code == http.StatusUnprocessableEntity {
				t.Errorf("%s: without room it is answered %d %q", name, w.Code, w.Body)
			}
			close(gate.open)
			running.Wait()
			if w := g.send(long); w.Code != status {
				t.Errorf("%s: with %d bytes again, it is answered %d; want %d", name, most, w.Code, status)
			}
		}
	}
}

// mcpWords are a part of what each refusal says to a model.
var mcpWords = map[string]string{
	"in-progress":        "The same call still runs. Call again in ",
	"outcome-unknown":    "Do not call with another key",
	"key-reused":         "or use a new key if this is another intent",
	"key-required":       `params._meta["io.github.dibs-go/idempotency-key"]`,
	"answer-not-kept":    "Do not call again",
	"store-unavailable":  "The call was not made. Call again in 1 s with the same key.",
	"overloaded":         "The call was not made. Call again in 1 s with the same key.",
	"origin-unreachable": "Call again with the same key.",
	"origin-hung-up":     "The call may or may not have taken effect",
}

// isError checks that w is the problem as an error of JSON-RPC with that id.
func isError(t *testing.T, w *httptest.ResponseRecorder, name string, status int, id string) {
	t.Helper()
	var m struct {
		JSONRPC string
		ID      json.RawMessage
		Error   struct {
			Code    int
			Message string
			Data    problem
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil {
		t.Fatalf("answered %d %q: %v", w.Code, w.Body, err)
	}
	if w.Code != status || m.JSONRPC != "2.0" || string(m.ID) != id || m.Error.Code != status || m.Error.Message == "" ||
		m.Error.Data.Type != idempotency.DocsURL+"#"+name || m.Error.Data.Status != status || !strings.Contains(m.Error.Message, mcpWords[name]) {
		t.Errorf("answered %d %q; want the problem %s with status %d and the id %s", w.Code, w.Body, name, status, id)
	}
}
