//go:build unix

package proxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// moody is an origin with a behaviour for each request in turn. Further requests get a good
// answer.
type moody struct {
	url  string
	runs atomic.Int64
}

type mood func(c *net.TCPConn)

func newMoody(t *testing.T, moods ...mood) *moody {
	t.Helper()
	m := &moody{}
	m.url = "http://" + testkit.Serve(t, func(_ int, c *net.TCPConn) { m.serve(c, moods) })
	return m
}

func (m *moody) serve(c *net.TCPConn, moods []mood) {
	r := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		io.Copy(io.Discard, req.Body)
		n := int(m.runs.Add(1))
		if n <= len(moods) {
			moods[n-1](c)
			return
		}
		body := fmt.Sprintf("run %d", n)
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
}

func leave(*net.TCPConn)   {}
func reset(c *net.TCPConn) { c.SetLinger(0) }

func silent(c *net.TCPConn) { io.Copy(io.Discard, c) }

func half(c *net.TCPConn) {
	io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
}

func noLastChunk(c *net.TCPConn) {
	io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
}

func earlyHints(c *net.TCPConn) {
	io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n\r\n")
}

// TestOriginFails: the client's answer if the origin does not answer, and the state of the
// key: with takeover the retry runs, with at-most-once the outcome is unknown.
func TestOriginFails(t *testing.T) {
	tests := []struct {
		name   string
		mood   mood
		limit  string
		status int
	}{
		{"hangs up", leave, "1m", 502},
		{"resets", reset, "1m", 502},
		{"does not answer in time", silent, "3s", 504},
		{"hangs up in the middle of the answer", half, "1m", 502},
		{"hangs up before the last chunk", noLastChunk, "1m", 502},
		{"hangs up after 103", earlyHints, "1m", 502},
	}
	for _, test := range tests {
		for _, policy := range []string{"takeover", "at-most-once"} {
			t.Run(test.name+", "+policy, func(t *testing.T) {
				t.Parallel()
				o := newMoody(t, test.mood)
				store, err := memstore.New(nil)
				testkit.Must(t, err)
				p := startOn(t, store, o.url, "", "--on-crash", policy, "--handler-limit", test.limit)
				patient := startOn(t, lent{store}, o.url, "", "--on-crash", policy)
				for _, body := range []string{"", "amount=7"} {
					request := fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k%d\r\nContent-Length: %d\r\n\r\n%s", len(body), len(body), body)
					o.runs.Store(0)
					_, r := raw(t, p.url, request)
					res, text := finalAnswer(t, r)
					if res.StatusCode != test.status || problemType(t, text) == "" {
						t.Errorf("the first answer is %d %q", res.StatusCode, text)
					}
					if n := o.runs.Load(); n != 1 {
						t.Errorf("the origin saw the request %d times", n)
					}
					for range 2 {
						res, text = send(t, patient.url, request)
						switch policy {
						case "takeover":
							if res.StatusCode != 200 || text != "run 2" {
								t.Errorf("the retry got %d %q", res.StatusCode, text)
							}
						default:
							if res.StatusCode != 409 || problemType(t, text) != "outcome-unknown" || res.Header.Get("Retry-After") != "" {
								t.Errorf("the retry got %d %q", res.StatusCode, text)
							}
						}
					}
				}
			})
		}
	}
}

// TestErrorsOfRoute: what the proxy itself refuses has the shape of the route, guarded or not.
func TestErrorsOfRoute(t *testing.T) {
	t.Parallel()
	o := newMoody(t, leave, leave)
	p := start(t, o.url, "errors: jsonapi\nroutes:\n- path: /pay\n  errors: stripe\n- path: /**\n  guard: false\n")
	for path, want := range map[string]string{
		"/pay":   `{"error":{"type":"api_error","code":"origin_hung_up",`,
		"/other": `{"errors":[{"links":{"about":"https://`,
		"//|":    `{"errors":[{"links":{"about":"https://`,
	} {
		if _, text := send(t, p.url, "POST "+path+" HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n"); !strings.HasPrefix(text, want) {
			t.Errorf("%s is answered %s", path, text)
		}
	}
}

// lent is a store whose Close does nothing.
type lent struct{ dibs.Store }

func (lent) Close() error { return nil }

// finalAnswer reads the answer after informational answers.
func finalAnswer(t *testing.T, r *bufio.Reader) (*http.Response, string) {
	t.Helper()
	for {
		res, err := http.ReadResponse(r, nil)
		testkit.Must(t, err)
		if res.StatusCode >= 200 {
			body, err := io.ReadAll(res.Body)
			testkit.Must(t, err)
			return res, string(body)
		}
	}
}

// problemType returns the name of a problem.
func problemType(t *testing.T, body string) string {
	t.Helper()
	var p struct{ Type string }
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		return ""
	}
	_, name, _ := strings.Cut(p.Type, "#")
	return name
}

// TestSettledOnThePage: retries get the answer that a person has entered on the page, whatever key ring
// the proxy has: it is stored as the middleware stores answers.
func TestSettledOnThePage(t *testing.T) {
	one, other := ringFile(t, ringText(32, "one")), ringFile(t, ringText(32, "other"))
	routes := func(first, second string) string {
		return fmt.Sprintf("routes:\n  - path: /first\n    key-ring: %s\n  - path: /second\n    key-ring: %s\n", first, second)
	}
	for name, test := range map[string]struct {
		text   string
		flags  []string
		status int // of the call of the page
	}{
		"no ring":           {"", nil, 200},
		"a ring":            {"", []string{"--key-ring", one}, 200},
		"a ring and routes": {routes(one, one), []string{"--key-ring", one}, 200},
		"plaintext":         {"", []string{"--key-ring", ringFile(t, "plaintext\n"+ringText(32, "one"))}, 200},
		"several rings":     {routes(one, other), []string{"--key-ring", one}, 422},
	} {
		t.Run(name, func(t *testing.T) {
			under, err := memstore.New(nil)
			testkit.Must(t, err)
			breaks := origin(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
			p := startOn(t, under, breaks, test.text, append([]string{"--on-crash", "at-most-once"}, test.flags...)...)
			p.sendKey(t, "k")
			if res, text := p.sendKey(t, "k"); res.StatusCode != 409 || problemType(t, text) != "outcome-unknown" {
				t.Fatalf("the retry is %d %s", res.StatusCode, text)
			}
			var found store.Entry
			for e, err := range under.List(t.Context(), store.Query{}) {
				testkit.Must(t, err)
				found = e
			}
			_, listed := get(t, p.admin+"/page/search?q="+url.QueryEscape(found.Key.Name))
			_, link, _ := strings.Cut(listed, `"link":"`)
			link, _, _ = strings.Cut(link, `"`)
			body := fmt.Sprintf(`{"link":"%s","id":"%s","status":201,"type":"text/plain","body":"by hand"}`, link, found.Runs[0].ID)
			res, err := http.Post(p.admin+"/page/resolve", "application/json", strings.NewReader(body))
			testkit.Must(t, err)
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			testkit.Must(t, err)
			if res.StatusCode != test.status {
				t.Fatalf("settling is %d %s", res.StatusCode, text)
			}
			retry, got := p.sendKey(t, "k")
			if test.status == 200 {
				if retry.StatusCode != 201 || got != "by hand" {
					t.Errorf("the retry is %d %s", retry.StatusCode, got)
				}
			} else if !strings.Contains(string(text), "dibs resolve --key-ring") || problemType(t, got) != "outcome-unknown" {
				t.Errorf("settling says %s, and the retry is %d %s", text, retry.StatusCode, got)
			}
		})
	}
}

func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	res, err := http.Get(url)
	testkit.Must(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	return res, string(text)
}
