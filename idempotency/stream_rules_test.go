package idempotency_test

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/journal"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

var streamRules = []rule{
	{"An answer is stored before its first byte is sent", func(t *testing.T) {
		for n, held := range map[int]bool{0: true, 99: true, 100: true, 101: false} {
			g := newRig(t, &idempotency.Options{MaxStored: 100}, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, strings.Repeat("x", n/2))
				_, _ = io.WriteString(w, strings.Repeat("x", n-n/2))
			})
			w := &watcher{ResponseWriter: httptest.NewRecorder(), sent: func() {
				second := g.send()
				if held && second.Header().Get("Idempotent-Replayed") != "true" {
					t.Errorf("%d bytes: the first byte left before the answer was stored: %d", n, second.Code)
				}
				if !held && second.Code != 409 {
					t.Errorf("%d bytes: a duplicate got %d while the answer streamed", n, second.Code)
				}
			}}
			g.h.ServeHTTP(w, request())
			if w.sent != nil {
				t.Errorf("%d bytes: nothing was sent", n)
			}
		}
	}},
	{"A stream is not held back", func(t *testing.T) {
		next := make(chan string)
		g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for text := range next {
				_, _ = fmt.Fprint(w, text)
				testkit.Check(t, http.NewResponseController(w).Flush())
			}
		})
		server := httptest.NewServer(g.h)
		defer server.Close()
		r := testkit.Request(t.Context(), t, http.MethodPost, server.URL, nil)
		r.Header.Set("Idempotency-Key", "k")
		go func() { next <- "data: 0\n" }()
		res, err := server.Client().Do(r)
		testkit.Must(t, err)
		lines := bufio.NewReader(res.Body)
		for i := range 3 {
			if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
				t.Fatalf("line %d arrived as %q, %v", i, line, err)
			}
			if i < 2 {
				next <- fmt.Sprintf("data: %d\n", i+1)
			}
		}
		close(next)
		if _, err := lines.ReadByte(); err != io.EOF {
			t.Errorf("the stream ended with %v", err)
		}
		_ = res.Body.Close()
		_, body, err := wire(t, server, withBody(""), withTarget("/"), with("Content-Type"), withKey("k"))
		if err != nil || body != "data: 0\ndata: 1\ndata: 2\n" {
			t.Errorf("replayed as %q, %v", body, err)
		}
		g.ran(1)
	}},
	{"A longer answer leaves a tombstone", func(t *testing.T) {
		for _, n := range []int{100, 101, 5000, 200000} {
			for name, write := range map[string]func(io.Writer, string){
				"written": func(w io.Writer, s string) { _, _ = w.Write([]byte(s)) },
				"copied":  func(w io.Writer, s string) { _, _ = io.Copy(w, onlyReader{strings.NewReader(s)}) },
				"bytewise": func(w io.Writer, s string) {
					for i := range min(len(s), 300) {
						_, _ = io.WriteString(w, s[i:i+1])
					}
					_, _ = io.WriteString(w, s[min(len(s), 300):])
				},
			} {
				text := strings.Repeat("x", n)
				for _, policy := range []idempotency.Oversize{idempotency.Tombstone, idempotency.Rerun} {
					g := newRig(t, &idempotency.Options{MaxStored: 100, OnOversize: policy}, func(w http.ResponseWriter, r *http.Request) { write(w, text) })
					first := g.send()
					isFresh(t, first, 200)
					if first.Body.String() != text {
						t.Errorf("%s: %d of %d bytes arrived", name, first.Body.Len(), n)
					}
					switch {
					case n <= 100:
						isReplay(t, g.send(), first)
					case policy == idempotency.Tombstone:
						isProblem(t, g.send(), "answer-not-kept", 410)
						isProblem(t, g.send(), "answer-not-kept", 410)
						g.ran(1)
						if e := g.last(); e.Kind != idempotency.EventNotKept {
							t.Errorf("observed %+v", e)
						}
					default:
						isFresh(t, g.send(), 200)
						g.ran(2)
					}
				}
			}
		}
		// What would not be kept anyway leaves none, and a long header counts.
		g := newRig(t, &idempotency.Options{MaxStored: 1}, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "down", http.StatusServiceUnavailable) })
		g.send()
		isFresh(t, g.send(), 503)
		long := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Long", strings.Repeat("x", 1<<20)) })
		isFresh(t, long.send(), 200)
		isProblem(t, long.send(), "answer-not-kept", 410)
	}},
	{"An answer that the store refuses leaves a tombstone", func(t *testing.T) {
		store, err := memstore.New(&memstore.Options{MaxBytes: 2000})
		testkit.Must(t, err)
		t.Cleanup(func() { _ = store.Close() })
		text := rand.Text() // which cannot be compressed to less
		for len(text) < 10000 {
			text += rand.Text()
		}
		answer := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, text) }
		for name, o := range map[string]*idempotency.Options{
			"plain":       {},
			"transaction": {Transactor: journal.New(store)},
		} {
			t.Run(name, func(t *testing.T) {
				g := newRigOn(t, &faulty{Store: store}, o, answer)
				key := withKey(name)
				first := g.send(key)
				if isFresh(t, first, 200); first.Body.String() != text {
					t.Errorf("%d of %d bytes arrived", first.Body.Len(), len(text))
				}
				if e := g.last(); !e.Stored || e.StoreFailed {
					t.Errorf("the event is %+v", e)
				}
				isProblem(t, g.send(key), "answer-not-kept", 410)
				again := *o
				again.OnOversize = idempotency.Rerun
				g = newRigOn(t, &faulty{Store: store}, &again, answer)
				key = withKey(name + "-again")
				isFresh(t, g.send(key), 200)
				isFresh(t, g.send(key), 200)
			})
		}
	}},
	{"A wrong Content-Length changes nothing", func(t *testing.T) {
		g := newRig(t, &idempotency.Options{MaxStored: 10}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5")
			if _, err := w.Write([]byte("12345")); err != nil {
				t.Error(err)
			}
			if _, err := w.Write([]byte("6789")); !errors.Is(err, http.ErrContentLength) {
				t.Errorf("more than declared: %v", err)
			}
		})
		server := httptest.NewServer(g.h)
		defer server.Close()
		for range 2 {
			if _, body, err := wire(t, server); err != nil || body != "12345" {
				t.Errorf("arrived as %q, %v", body, err)
			}
		}
		g.ran(1)
		for _, length := range []string{"lies", "-1", ""} {
			g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", length)
				_, _ = fmt.Fprint(w, "body")
			})
			first := g.send()
			isReplay(t, g.send(), first)
		}
	}},
	{"A broken answer is never stored as complete", func(t *testing.T) {
		for _, policy := range []idempotency.Crash{idempotency.TakeOver, idempotency.AtMostOnce} {
			for name, h := range map[string]http.HandlerFunc{
				"short": func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Length", "100")
					_, _ = fmt.Fprint(w, "short")
				},
				"short stream": func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Length", "100")
					_, _ = fmt.Fprint(w, "short")
					w.(http.Flusher).Flush()
				},
				"aborted stream": func(w http.ResponseWriter, r *http.Request) {
					_, _ = fmt.Fprint(w, "half")
					w.(http.Flusher).Flush()
					panic(http.ErrAbortHandler)
				},
			} {
				g := newRig(t, &idempotency.Options{OnCrash: policy}, h)
				server := httptest.NewServer(g.h)
				if res, body, err := wire(t, server); err == nil {
					t.Errorf("%s: a broken answer arrived as %v %q", name, res.Status, body)
				}
				testkit.Eventually(t, "the run is settled", func() bool { return len(g.seen()) == 1 })
				if e := g.last(); e.Kind != idempotency.EventInterrupted || e.Stored {
					t.Errorf("%s: observed %+v", name, e)
				}
				res, _, err := wire(t, server)
				if policy == idempotency.TakeOver && err == nil || policy == idempotency.AtMostOnce && (err != nil || res.StatusCode != http.StatusConflict) {
					t.Errorf("%s, %s: the retry got %v, %v", name, policy, res, err)
				}
				server.Close()
			}
		}
	}},
}

// watcher calls sent, once, before the first byte leaves.
type watcher struct {
	http.ResponseWriter
	sent func()
}

func (w *watcher) WriteHeader(status int) {
	if sent := w.sent; sent != nil {
		w.sent = nil
		sent()
	}
	w.ResponseWriter.WriteHeader(status)
}
