package idempotency_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// wire sends a request over a real connection and reads the whole answer.
func wire(t *testing.T, server *httptest.Server, changes ...change) (*http.Response, string, error) {
	t.Helper()
	r := request(changes...).WithContext(t.Context())
	out := testkit.Request(t.Context(), t, r.Method, server.URL+r.RequestURI, r.Body)
	out.Header, out.ContentLength = r.Header, r.ContentLength
	out.Header.Set("Accept-Encoding", "identity")
	res, err := server.Client().Do(out)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return res, string(body), err
}

// moment takes off what differs between a first answer and its replay.
func moment(h http.Header) http.Header {
	h = h.Clone()
	for _, name := range []string{"Date", "Content-Length", "Trailer", "Idempotent-Replayed"} {
		h.Del(name)
	}
	return h
}

var answerRules = []rule{
	{"The whole answer is stored", func(t *testing.T) {
		binary := make([]byte, 256)
		for i := range binary {
			binary[i] = byte(i)
		}
		long := strings.Repeat("all work and no play ", 10000)
		for name, h := range map[string]http.HandlerFunc{
			"several values": func(w http.ResponseWriter, r *http.Request) {
				w.Header()["X-Many"] = []string{"a", "b, c", "a", ""}
				w.Header()["Link"] = []string{"<x>; rel=next"}
				w.WriteHeader(299)
				_, _ = w.Write(binary)
			},
			"injection": func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-A", "b\r\nX-C: d") },
			"spelling":  func(w http.ResponseWriter, r *http.Request) { w.Header()["x-lower"] = []string{"v"} },
			"no type":   func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, "<html><body>hello") },
			"binary":    func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(binary) },
			"type refused": func(w http.ResponseWriter, r *http.Request) {
				w.Header()["Content-Type"] = nil
				_, _ = fmt.Fprint(w, "<html>")
			},
			"encoded": func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Encoding", "br")
				_, _ = fmt.Fprint(w, "<html>")
			},
			"flushed first": func(w http.ResponseWriter, r *http.Request) {
				w.(http.Flusher).Flush()
				_, _ = fmt.Fprint(w, "<html>")
			},
			"flushed after": func(w http.ResponseWriter, r *http.Request) {
				_, _ = fmt.Fprint(w, "plain ")
				w.(http.Flusher).Flush()
				_, _ = fmt.Fprint(w, "<html>")
			},
			"long": func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, long) },
			"copied": func(w http.ResponseWriter, r *http.Request) {
				if n, err := io.Copy(w, onlyReader{strings.NewReader(long)}); n != int64(len(long)) || err != nil {
					t.Errorf("copied %d bytes, %v", n, err)
				}
			},
			"nothing": func(w http.ResponseWriter, r *http.Request) {},
			"declared": func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", "5")
				_, _ = fmt.Fprint(w, "12345")
			},
			"header changed too late": func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-A", "before")
				w.WriteHeader(http.StatusOK)
				w.Header().Set("X-A", "after")
				w.Header().Set("X-B", "after")
				_, _ = fmt.Fprint(w, "x")
			},
			"header changed before it streams": func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-A", "before")
				w.WriteHeader(http.StatusOK)
				w.Header().Set("X-A", "after")
				w.(http.Flusher).Flush()
				_, _ = fmt.Fprint(w, "x")
			},
			"trailers": func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Trailer", "X-Sum, X-Count")
				w.Header().Set("Content-Length", "4")
				_, _ = fmt.Fprint(w, "body")
				w.Header().Set("X-Sum", "s")
				w.Header().Add("X-Count", "1")
				w.Header().Add("X-Count", "2")
			},
			"unannounced trailers": func(w http.ResponseWriter, r *http.Request) {
				_, _ = fmt.Fprint(w, "body")
				w.(http.Flusher).Flush()
				w.Header().Set(http.TrailerPrefix+"X-Late", "l")
			},
			"a trailer before a flush": func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				_, _ = fmt.Fprint(w, "body")
				w.Header().Set("X-Sum", "s")
				w.(http.Flusher).Flush()
				_, _ = fmt.Fprint(w, "more")
			},
			"an unannounced trailer before a flush": func(w http.ResponseWriter, r *http.Request) {
				_, _ = fmt.Fprint(w, "body")
				w.Header().Set(http.TrailerPrefix+"X-Early", "e")
				w.(http.Flusher).Flush()
				w.Header().Set(http.TrailerPrefix+"X-Late", "l")
			},
			"trailers alone": func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				w.WriteHeader(http.StatusOK)
				w.Header().Set("X-Sum", "s")
			},
		} {
			g := newRig(t, nil, h)
			server := httptest.NewServer(g.h)
			bare := httptest.NewServer(h)
			want, wantBody, err := wire(t, bare)
			if err != nil {
				t.Fatal(name, err)
			}
			for i := range 3 {
				got, body, err := wire(t, server)
				if err != nil {
					t.Fatal(name, err)
				}
				if got.StatusCode != want.StatusCode || body != wantBody {
					t.Errorf("%s, answer %d: %d, %d bytes; want %d, %d bytes", name, i, got.StatusCode, len(body), want.StatusCode, len(wantBody))
				}
				if a, b := moment(got.Header), moment(want.Header); !reflect.DeepEqual(a, b) {
					t.Errorf("%s, answer %d: header %v; want %v", name, i, a, b)
				}
				if (len(want.Trailer) > 0 || name == "trailers") && len(got.Trailer) == 0 {
					t.Errorf("%s, answer %d: no trailer", name, i)
				}
				for k, v := range want.Trailer {
					// The bare server sends no trailer beside a Content-Length.
					if name != "trailers" && !slices.Equal(got.Trailer[k], v) {
						t.Errorf("%s, answer %d: trailer %s %q; want %q", name, i, k, got.Trailer[k], v)
					}
				}
				if name == "trailers" && !slices.Equal(got.Trailer["X-Count"], []string{"1", "2"}) {
					t.Errorf("%s, answer %d: trailer %v", name, i, got.Trailer)
				}
			}
			server.Close()
			bare.Close()
			g.ran(1)
		}
	}},
	{"Fields of one connection or moment are not stored", func(t *testing.T) {
		dropped := []string{
			"Keep-Alive", "Proxy-Connection", "Te", "Upgrade", "X-Hop", "Age", "Set-Cookie", "WWW-Authenticate",
			"Authentication-Info", "RateLimit", "RateLimit-Policy", "Ratelimit-Remaining", "X-RateLimit-Limit", "X-Ratelimit-Reset",
			"X-Request-Id", "Traceparent", "Tracestate", "Server-Timing", "X-Mine", "idempotency-answer-not-kept",
		}
		kept := []string{"X-Kept", "Etag", "Vary", "Location", "Cache-Control"}
		h := func(w http.ResponseWriter, r *http.Request) {
			for _, name := range dropped {
				w.Header().Set(name, "v")
			}
			for _, name := range kept {
				w.Header().Set(name, "v")
			}
			w.Header().Set("Connection", "close, x-hop")
			w.Header().Set("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
		}
		g := newRig(t, &idempotency.Options{NotStored: []string{"x-mine"}}, h)
		first := g.send()
		for _, name := range dropped[:len(dropped)-1] {
			if first.Header().Get(name) == "" {
				t.Errorf("the first answer lost %s", name)
			}
		}
		replay := g.send()
		for _, name := range append(dropped, "Connection", "Date") {
			if got := replay.Header().Get(name); got != "" {
				t.Errorf("the replay has %s: %s", name, got)
			}
		}
		for _, name := range kept {
			if got := replay.Header().Get(name); got != "v" {
				t.Errorf("the replay's %s is %q", name, got)
			}
		}
		cookies := newRig(t, &idempotency.Options{KeepSetCookie: true}, h)
		cookies.send()
		if got := cookies.send().Header().Get("Set-Cookie"); got != "v" {
			t.Errorf("the replay's Set-Cookie is %q", got)
		}
	}},
	{"A replay has new framing", func(t *testing.T) {
		for status, body := range map[int]string{200: "", 201: "x", 202: strings.Repeat("x", 5000), 204: "", 304: "", 303: "", 205: ""} {
			g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				if body != "" {
					_, _ = fmt.Fprint(w, body)
				}
				if status == 204 || status == 304 {
					if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
						t.Errorf("a body with %d: %v", status, err)
					}
				}
			})
			server := httptest.NewServer(g.h)
			server.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			first, _, err := wire(t, server)
			testkit.Must(t, err)
			res, got, err := wire(t, server)
			if err != nil || got != body || res.StatusCode != status {
				t.Errorf("%d replayed as %d %q, %v", status, res.StatusCode, got, err)
			}
			want := strconv.Itoa(len(body))
			if status == 204 || status == 304 {
				want = ""
			}
			if got := res.Header.Get("Content-Length"); got != want {
				t.Errorf("%d replayed with Content-Length %q; want %q", status, got, want)
			}
			if res.Header.Get("Date") == "" || first.Header.Get("Date") == "" {
				t.Errorf("%d without Date", status)
			}
			server.Close()
			g.ran(1)
		}
	}},
	{"Informational answers are passed on", func(t *testing.T) {
		g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "<style.css>; rel=preload")
			w.Header().Set("Idempotency-Control", "max-age=60")
			w.WriteHeader(http.StatusEarlyHints)
			if w.Header().Get("Idempotency-Control") == "" {
				t.Error("the handler's header changed under its hands")
			}
			w.WriteHeader(http.StatusCreated)
		})
		server := httptest.NewServer(g.h)
		defer server.Close()
		for i, want := range []int{1, 0} {
			informed := 0
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				informed++
				if code != 103 || h.Get("Link") == "" || h.Get("Idempotency-Control") != "" {
					t.Errorf("informed of %d %v", code, h)
				}
				return nil
			}})
			r := testkit.Request(ctx, t, http.MethodPost, server.URL, nil)
			r.Header.Set("Idempotency-Key", "k")
			res, err := server.Client().Do(r)
			testkit.Must(t, err)
			_ = res.Body.Close()
			if res.StatusCode != http.StatusCreated || informed != want {
				t.Errorf("request %d: status %d, informed %d times; want %d", i, res.StatusCode, informed, want)
			}
		}
	}},
	{"Preferences of the retry do not change a replay", func(t *testing.T) {
		g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Vary", "Accept-Encoding")
			w.Header().Set("Etag", `"1"`)
			_, _ = fmt.Fprint(w, "not really gzip")
		})
		first := g.send(with("Accept-Encoding", "gzip"))
		w := g.send(with("Accept-Encoding", "identity"), with("Range", "bytes=0-1"), with("If-None-Match", `"1"`), with("If-Match", `"2"`), with("Accept", "text/plain"))
		isReplay(t, w, first)
		if w.Header().Get("Vary") != "Accept-Encoding" || w.Header().Get("Content-Encoding") != "gzip" {
			t.Errorf("replayed with %v", w.Header())
		}
	}},
}

// onlyReader hides that a reader can write itself.
type onlyReader struct{ io.Reader }
