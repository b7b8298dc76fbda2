package dialect

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/content"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// decoded returns what a JSON text holds.
func decoded(t *testing.T, text []byte) (all map[string]any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	testkit.Must(t, d.Decode(&all))
	if _, err := d.Token(); err != io.EOF {
		t.Errorf("%q has more than a value", text)
	}
	return all
}

// FuzzReply: a replay has the new id, and otherwise what the first answer had, also as a stream.
func FuzzReply(f *testing.F) {
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"result":{"isError":true},"id":"a" }`, "{\"id\"\r\n:\n-1e3,\n\"error\":{\"id\":2}}", `{"id":null,"result":[]}`,
		`{"id":1,"result":{"id":2},"id":3}`, `{"id":1,"method":"ping"}`, `[{"id":1,"result":{}}]`, `{"id":1,"result":{}} {}`,
	} {
		f.Add([]byte(text), "8")
	}
	f.Fuzz(func(t *testing.T, text []byte, id string) {
		if replyOf(text) == nil || !json.Valid([]byte(id)) {
			return
		}
		want := decoded(t, text)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		x := &mcpRequest{r: r, message: message{id: json.RawMessage(id)}}
		replay := x.Replay(http.Header{}, text)
		got := decoded(t, replay)
		if gotID, _ := json.Marshal(got["id"]); !sameJSON(t, gotID, []byte(id)) {
			t.Errorf("%q has the id %s; want %s", replay, gotID, id)
		}
		delete(got, "id")
		delete(want, "id")
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q became %q", text, replay)
		}
		r.Header.Set("Accept", "text/event-stream")
		stream := x.Replay(http.Header{}, text)
		if events := eventsOf(stream); len(events) != 1 || !reflect.DeepEqual(decoded(t, events[0]), decoded(t, replay)) {
			t.Errorf("the stream %q has the events %q; want %q", stream, events, replay)
		}
	})
}

// sameJSON reports whether two texts hold the same.
func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	wrap := func(text []byte) []byte { return append(append([]byte(`{"a":`), text...), '}') }
	return reflect.DeepEqual(decoded(t, wrap(a)), decoded(t, wrap(b)))
}

// FuzzCall: a call that is sent again with another id, other _meta and in another order is the same
// call, and one with another argument is not.
func FuzzCall(f *testing.F) {
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"b":1.50,"a":["<é>",null]},"_meta":{"progressToken":1}}}`,
		`{"method":"tools\/call","params":{"name":"a","name":"b"}}`, `{"method":"tools/call","params":{"name":"a","arguments":{"b":0,"b":0}}}`,
		`[{"method":"tools/call"}]`, `{"id":1,"result":{}}`, `{"method":"ping"}`, "\ufeff{}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := readOf(t, text)
		if err != nil || !m.call {
			return
		}
		all := decoded(t, text)
		params, _ := all["params"].(map[string]any)
		if method, _ := all["method"].(string); !strings.EqualFold(method, "tools/call") || params == nil {
			t.Fatalf("%q is read as a call", text)
		}
		if _, err := content.CanonicalJSON(content.Of(text)); err != nil { // a map would not hold it either
			return
		}
		params["_meta"], all["id"] = map[string]any{"a": "b"}, "another"
		again, _ := json.Marshal(all)
		if same, err := readOf(t, again); err != nil || !same.call || same.asked != m.asked {
			t.Errorf("%q and %q are not the same call: %v", text, again, err)
		}
		params["other argument"] = json.Number("7")
		other, _ := json.Marshal(all)
		if different, err := readOf(t, other); err != nil || different.asked == m.asked {
			t.Errorf("%q and %q are the same call: %v", text, other, err)
		}
	})
}

// readOf reads a message.
func readOf(t *testing.T, text []byte) (*message, error) {
	t.Helper()
	m := new(message)
	return m, m.readAll(content.Of(text), nil)
}
