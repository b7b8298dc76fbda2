package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// slowRules are the rules about clients that send or read slowly.
var slowRules = []rule{
	{"A slow client does not prolong a run", func(t *testing.T) {
		for client, send := range unread {
			g := newRig(t, &idempotency.Options{BodyTimeout: 50 * time.Millisecond, MaxStored: 1000, MaxConcurrent: 1}, writesLong)
			send(t, newServer(t, g.h).URL)
			testkit.Eventually(t, "the run of a client "+client, func() bool { return len(g.seen()) == 1 })
			if e := g.last(); e.Kind != idempotency.EventRan || e.Status != 0 || !e.Stored || e.Err != idempotency.ErrSlowClient {
				t.Errorf("%s: the event is %+v", client, e)
			}
			isProblem(t, g.send(withBody(""), with("Content-Type")), "answer-not-kept", 410)
			g.ran(1)
		}
	}},
	{"A slow client does not prolong a run", func(t *testing.T) {
		// Nor one that takes each part in time, but half of the run's time for all of them.
		for _, o := range []*idempotency.Options{{MaxStored: 1000}, {MaxStored: 1000, BodyTimeout: time.Hour}} {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, o, writesLong)
				c := dialBubble(t, g.h)
				testkit.Must(t, newKeyed(t, "http://example.com", "k").Write(c))
				part, n, err := make([]byte, 17<<10), 0, error(nil)
				for err == nil {
					time.Sleep(20 * time.Second)
					_, err = io.ReadFull(c, part)
					n++
				}
				if took := g.last().Handler; took != idempotency.DefaultHandlerLimit/2 || n < 5 {
					t.Errorf("the handler took %v; the client took %d parts", took, n)
				}
			})
		}
	}},
	{"A slow client does not prolong a run", func(t *testing.T) {
		// Even if outer handlers hide the connection, which the log then says.
		synctest.Test(t, func(t *testing.T) {
			log, logger := newLogger()
			g := newRig(t, &idempotency.Options{MaxStored: 1000, Logger: logger}, writesLong)
			open, ended := g.serveStuck(request())
			time.Sleep(idempotency.DefaultBodyTimeout)
			synctest.Wait()
			isProblem(t, g.send(), "answer-not-kept", 410)
			if !strings.Contains(log.String(), "Unwrap") {
				t.Errorf("the log says %s", log)
			}
			close(open)
			if p := <-ended; p != http.ErrAbortHandler {
				t.Errorf("the transfer ended with %v; it must be broken", p)
			}
			g.ran(1)
		})
	}},
	{"A slow client does not prolong a run", func(t *testing.T) {
		// Nor with an informational answer that it does not take.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, nil, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Link", "</style.css>")
				w.WriteHeader(http.StatusEarlyHints)
				clear(w.Header())
				_, _ = io.WriteString(w, "charged")
			})
			open, ended := g.serveStuck(request())
			time.Sleep(idempotency.DefaultBodyTimeout)
			synctest.Wait()
			if w := g.send(); w.Code != 200 || w.Body.String() != "charged" || w.Header().Get("Link") != "" {
				t.Errorf("the retry is answered %d %s %v", w.Code, w.Body, w.Header())
			}
			close(open)
			if p := <-ended; p != http.ErrAbortHandler {
				t.Errorf("the transfer ended with %v; it must be broken", p)
			}
			g.ran(1)
		})
	}},
	{"A slow client does not prolong a run", func(t *testing.T) {
		// Over HTTP/2 it breaks its own stream only, and a handler that pauses breaks none.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Idempotency-Key") == "long" {
					writesLong(w, r)
					return
				}
				_, _ = io.WriteString(w, "first ")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(4 * idempotency.DefaultBodyTimeout)
				_, _ = io.WriteString(w, "second")
			})
			server, base := newBubbleServer(t, g.h)
			tr := testkit.HTTP2(t, 1<<20)
			tr.DialContext = base.DialContext
			slow, err := tr.RoundTrip(newKeyed(t, server.URL, "long"))
			testkit.Must(t, err)
			for _, key := range []string{"a", "b"} {
				res, err := tr.RoundTrip(newKeyed(t, server.URL, key))
				testkit.Must(t, err)
				if text, err := io.ReadAll(res.Body); err != nil || string(text) != "first second" {
					t.Errorf("a stream that pauses is %q, %v", text, err)
				}
				_ = res.Body.Close()
			}
			if n, err := io.Copy(io.Discard, slow.Body); err == nil {
				t.Errorf("the client got all %d bytes of a transfer that must be broken", n)
			}
			_ = slow.Body.Close()
		})
	}},
	{"A slow client does not prolong a run", func(t *testing.T) {
		// A stored answer is sent at a client's pace, within the same limit.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, &idempotency.Options{MaxConcurrent: 1}, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write(make([]byte, 64<<10))
			})
			for _, outcome := range []idempotency.EventKind{idempotency.EventRan, idempotency.EventReplayed} {
				c := dialBubble(t, g.h)
				testkit.Must(t, newKeyed(t, "http://example.com", "k").Write(c))
				synctest.Wait()
				if w := g.send(withBody(""), with("Content-Type")); w.Code != 200 {
					t.Errorf("a retry while the answer is sent: %d %s", w.Code, w.Body)
				}
				time.Sleep(idempotency.DefaultBodyTimeout)
				synctest.Wait()
				if e := g.last(); e.Kind != outcome || e.Status != 0 {
					t.Errorf("the event of a broken transfer is %+v; want %s", e, outcome)
				}
				if n, err := io.Copy(io.Discard, c); n != 0 || err != nil {
					t.Errorf("the connection had %d more bytes, %v", n, err)
				}
			}
			g.ran(1)
		})
	}},
	{"Requests with a key can be bounded", func(t *testing.T) {
		// A run without a guard, while the store is away, waits no longer for its client.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, &idempotency.Options{MaxConcurrent: 1, OnStoreFailure: idempotency.FailOpen}, writesLong)
			g.store.fail(func(context.Context, string) error { return errDown })
			open, ended := g.serveStuck(request())
			synctest.Wait()
			g.isOverloaded("MaxConcurrent", g.send(withKey("other")))
			time.Sleep(idempotency.DefaultBodyTimeout + idempotency.DefaultStoreTimeout)
			synctest.Wait()
			if w := g.send(withKey("other")); w.Code != 200 {
				t.Errorf("answered %d %s", w.Code, w.Body)
			}
			close(open)
			<-ended
		})
	}},
	{"Requests with a key can be bounded", func(t *testing.T) {
		// A body that has not arrived keeps no other request out, nor an answer that is not taken.
		g := newRig(t, &idempotency.Options{MaxConcurrent: 1, MaxStored: 10, MaxBodyMemory: 1<<20 + 10}, nil)
		var slow []<-chan *httptest.ResponseRecorder
		var rest []*io.PipeWriter
		for _, key := range []string{"a", "b", "c"} {
			body, w := io.Pipe()
			rest = append(rest, w)
			slow = append(slow, g.sendLater(withKey(key), withChunks(body), func(r *http.Request) { r.ContentLength = 1 << 20 }))
			_, _ = io.WriteString(w, "x") // is read
		}
		isFresh(t, g.send(withKey("d")), 201)
		taken := &watcher{ResponseWriter: httptest.NewRecorder(), sent: func() { isFresh(t, g.send(withKey("f")), 201) }}
		g.h.ServeHTTP(taken, request(withKey("e")))
		for i, w := range rest {
			_ = w.Close()
			<-slow[i]
		}
		g.ran(6)
	}},
	{"A body that stops is refused", func(t *testing.T) {
		// So is one that hardly moves.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, nil, nil)
			server, base := newBubbleServer(t, g.h)
			began := time.Now()
			body, w := io.Pipe()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for err := error(nil); err == nil; _, err = io.WriteString(w, "x") {
					time.Sleep(time.Second)
				}
			}()
			r := testkit.Request(t.Context(), t, http.MethodPost, server.URL, body)
			r.ContentLength = 1 << 20
			r.Header.Set("Idempotency-Key", "k")
			res, err := base.RoundTrip(r)
			testkit.Must(t, err)
			text, _ := io.ReadAll(res.Body)
			took := time.Since(began)
			_ = res.Body.Close()
			_ = body.Close()
			<-ended
			if res.StatusCode != 408 || !strings.Contains(string(text), "body-timeout") || took != idempotency.DefaultBodyTimeout {
				t.Errorf("answered %d %s after %v", res.StatusCode, text, took)
			}
			g.ran(0)
		})
	}},
}
