package command

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

// newClient returns a client of a new store, and the store's URL.
func newClient(t *testing.T) (c *dibs.Client, url string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dibs.db")
	store, err := sqlitestore.Open(path, nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	client, err := dibs.New(store, nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client, "sqlite:" + path
}

// answerOf returns the answer that a key has.
func answerOf(t *testing.T, client *dibs.Client, key string) *idempotency.Answer {
	t.Helper()
	record, ok, err := client.Record(t.Context(), key)
	if err != nil || !ok {
		t.Fatalf("the key is not done: %v", err)
	}
	a, err := idempotency.DecodeAnswer(record.Data, 0)
	testkit.Must(t, err)
	return a
}

// TestResolveCall: the answer to a call of a tool must be a response of JSON-RPC, because a client of MCP
// can read nothing else.
func TestResolveCall(t *testing.T) {
	client, url := newClient(t)
	const key = "mcp:AAAAAAAAAAAAAAAAAAAAAA:k"
	lost, err := client.Acquire(t.Context(), key, &dibs.AcquireOptions{AtMostOnce: true})
	testkit.Must(t, err)
	testkit.Must(t, lost.Abandon(t.Context()))
	resolve := func(body string, more ...string) (int, string) {
		code, stdout, stderr := call(t, map[string]string{"DIBS_STORE": url}, append([]string{"resolve", "--id", lost.ID(), "--status=200", "--yes", "--body", body}, more...)...)
		return code, stdout + stderr
	}
	for _, body := range []string{
		"", "charge 1", `{"charge":1}`, `{"content":[{"type":"text","text":"charge 1"}]}`, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"result":"charge 1"}`,
		`{"jsonrpc":"2.0","result":{}}`, `{"id":1,"result":{}}`, `{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`, `[{"jsonrpc":"2.0","id":1,"result":{}}]`, `{"jsonrpc":"2.0","id":1,"Result":{}}`,
		"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n",
	} {
		if code, text := resolve(body); code != 64 || !strings.Contains(text, "the body must be a response of JSON-RPC, such as") {
			t.Errorf("%q: exited with %d: %s", body, code, text)
		}
	}
	const response = ` {"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":"charge 1"}]}}`
	if code, text := resolve(response, "--header", "Content-Type: text/plain"); code != 0 || !strings.Contains(text, "retries get 200") {
		t.Fatalf("exited with %d: %s", code, text)
	}
	a := answerOf(t, client, key)
	if string(a.Body) != response || a.Header.Get("Content-Type") != "application/json" {
		t.Errorf("the answer is %+v", a)
	}
}

// TestResolveBody: a body comes from the flag or from stdin, and one that no retry would get is refused.
func TestResolveBody(t *testing.T) {
	client, url := newClient(t)
	const key = "http:AAAAAAAAAAAAAAAAAAAAAA:"
	resolve := func(name, stdin string, args ...string) (int, string) {
		lost, err := client.Acquire(t.Context(), key+name, &dibs.AcquireOptions{AtMostOnce: true})
		if err == nil {
			testkit.Must(t, lost.Abandon(t.Context()))
		}
		var text bytes.Buffer
		code := Run(t.Context(), append([]string{"resolve", key + name, "--store", url, "--yes"}, args...), Env{
			Stdin: strings.NewReader(stdin), Stdout: &text, Stderr: &text, Getenv: func(string) string { return "" },
		})
		return code, text.String()
	}
	long := strings.Repeat("x", idempotency.DefaultMaxStored)
	for _, test := range []struct {
		stdin, want string
		args        []string
	}{
		{long + "x", "--body: it is longer than 1MiB", []string{"--status=200", "--body=-"}},
		{"", "--body: it is longer than 1MiB", []string{"--status=200", "--body=" + long + "x"}},
		{"x", "an answer with status 204 has no body", []string{"--status=204", "--body=-"}},
		{"", "an answer with status 304 has no body", []string{"--status=304", "--body=x"}},
	} {
		if code, text := resolve("refused", test.stdin, test.args...); code != 64 || !strings.Contains(text, test.want) {
			t.Errorf("exited with %d: %s; want %q", code, text, test.want)
		}
	}
	for name, body := range map[string]string{"empty": "", "binary": "\x00\xff\r\n\r\n", "long": long} {
		code, text := resolve(name, body, "--status=200", "--body=-")
		if code != 0 || string(answerOf(t, client, key+name).Body) != body {
			t.Errorf("%s: exited with %d: %s, or the body is another one", name, code, text)
		}
	}
	if code, text := resolve("none", "", "--status=204", "--body=-"); code != 0 {
		t.Errorf("exited with %d: %s", code, text)
	}
}

// TestResolveText: the text of a tool becomes the result of its call.
func TestResolveText(t *testing.T) {
	client, url := newClient(t)
	resolve := func(key string, args ...string) (int, string) {
		lost, err := client.Acquire(t.Context(), key, &dibs.AcquireOptions{AtMostOnce: true})
		if err == nil {
			testkit.Must(t, lost.Abandon(t.Context()))
		}
		code, stdout, stderr := call(t, map[string]string{"DIBS_STORE": url}, append([]string{"resolve", key, "--yes"}, args...)...)
		return code, stdout + stderr
	}
	const tool, request = "mcp:AAAAAAAAAAAAAAAAAAAAAA:k", "http:AAAAAAAAAAAAAAAAAAAAAA:k"
	for _, test := range []struct {
		key, want string
		args      []string
	}{
		{request, "is not the key of a call of a tool (MCP); use --status", []string{"--text=paid"}},
		{"nightly", "is not the key of a call of a tool (MCP); use --result", []string{"--text=paid"}},
		{tool, "--text: it is empty", []string{"--text="}},
		{tool, "choose the outcome", []string{"--text=paid", "--status=200"}},
		{tool, "--body: it has no effect with --text", []string{"--text=paid", "--body=x"}},
		{tool, "--header: it has no effect with --text", []string{"--text=paid", "--header=A: b"}},
		{tool, "--retention: 1ms is out of range", []string{"--text=paid", "--retention=1ms"}},
		{tool, "--text makes one of the tool's text", []string{"--status=200", "--body=paid"}},
	} {
		if code, text := resolve(test.key, test.args...); code != 64 || !strings.Contains(text, test.want) {
			t.Errorf("%s %q: exited with %d: %s; want %q", test.key, test.args, code, text, test.want)
		}
	}
	const said = "charge 1: \"3 €\"\n<done>"
	if code, text := resolve(tool, "--text", said); code != 0 || !strings.Contains(text, "retries get 200") {
		t.Fatalf("exited with %d: %s", code, text)
	}
	a := answerOf(t, client, tool)
	var m struct {
		Result struct {
			Content []struct{ Type, Text string }
			IsError bool
		}
	}
	testkit.Must(t, json.Unmarshal(a.Body, &m))
	if c := m.Result.Content; a.Status != 200 || len(c) != 1 || c[0].Type != "text" || c[0].Text != said || m.Result.IsError {
		t.Errorf("the answer is %d %s", a.Status, a.Body)
	}
}

// TestEncryptedAnswers: commands say that an answer is encrypted, and settle encrypts the answer
// that it stores.
func TestEncryptedAnswers(t *testing.T) {
	url, unknown := leave(t)
	text := "new:" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("n"), 32))
	file := filepath.Join(t.TempDir(), "ring")
	testkit.Must(t, os.WriteFile(file, []byte(text), 0o600))
	steps := []struct {
		args []string
		code int
		want string
	}{
		{[]string{"resolve", "--id", unknown, "--rerun", "--key-ring", file, "--yes"}, 64, "key-ring: it has no effect with --rerun"},
		{[]string{"resolve", "--id", unknown, "--status", "204", "--key-ring", file + "x", "--yes"}, 64, "key-ring: "},
		{[]string{"show", scope + "unknown"}, 0, "unknown: it may or may not"},
		{[]string{"resolve", "--id", unknown, "--status", "204", "--key-ring", file, "--yes"}, 0, "retries get 204"},
		{[]string{"show", scope + "unknown"}, 0, "bytes, encrypted with the key new, stored"},
		{[]string{"show", "--json", scope + "unknown"}, 0, `"encrypted_with":"new"`},
		{[]string{"ls", "--state", "all"}, 0, "bytes encrypted, "},
		{[]string{"ls", "--state", "all", "--json"}, 0, `"encrypted_with":"new"`},
	}
	for _, step := range steps {
		code, stdout, stderr := call(t, nil, append(step.args, "--store", url)...)
		if code != step.code || !strings.Contains(stdout+stderr, step.want) {
			t.Errorf("%v: %d %s%s; want %d and %q", step.args, code, stdout, stderr, step.code, step.want)
		}
	}

	s, err := sqlitestore.Open(strings.TrimPrefix(url, "sqlite:"), nil)
	testkit.Must(t, err)
	defer s.Close()
	key := dibs.Key{Name: scope + "unknown"}
	ring, err := idempotency.ParseKeyRing(text)
	testkit.Must(t, err)
	for e, err := range s.List(t.Context(), store.Query{Name: key.Name, Data: true}) {
		testkit.Must(t, err)
		record, err := ring.Decrypt(key, dibs.Fingerprint{1}, e.Record.Data)
		testkit.Must(t, err)
		if a, err := idempotency.DecodeAnswer(record, 0); err != nil || a.Status != 204 || e.Record.Left > idempotency.DefaultRetention+time.Minute {
			t.Errorf("stored is %+v, %v", a, err)
		}
	}
}
