package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

const quotaAnswer = "a charge"

// answerQuota is a handler whose answers have recordLength bytes in the store. With X-Keep an answer
// is kept for a minute.
func answerQuota(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Keep") != "" {
		w.Header().Set("Idempotency-Control", "max-age=60")
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = io.WriteString(w, quotaAnswer)
}

func recordLength(t *testing.T) int64 {
	t.Helper()
	record, err := idempotency.EncodeAnswer("http:", &idempotency.Answer{
		Status: 200, Header: http.Header{"Content-Type": {"text/plain"}}, Body: []byte(quotaAnswer),
	})
	testkit.Must(t, err)
	return int64(len(record))
}

// isOverQuota checks that the quota refused the request, and returns when to ask again.
func (g *rig) isOverQuota(w *httptest.ResponseRecorder) time.Duration {
	g.t.Helper()
	isProblem(g.t, w, "quota-exceeded", 429)
	if e := g.last(); e.Kind != idempotency.EventOverQuota || e.Status != 429 || e.Attempt != 0 || e.Fence != 0 {
		g.t.Errorf("the event is %+v", e)
	}
	return time.Duration(retryAfter(g.t, w, 26*60*60)) * time.Second
}

var quotaRules = []rule{
	{"Stored answers can have a quota", inBubble(func(t *testing.T) {
		gate := newGate()
		g := newRig(t, &idempotency.Options{Quota: 2 * recordLength(t)}, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Then") == "waits" {
				gate.ServeHTTP(w, r)
				return
			}
			answerQuota(w, r)
		})
		running := g.sendLater(withKey("running"), with("X-Then", "waits"))
		<-gate.entered
		first := g.send(withKey("a"))
		second := g.send(withKey("b"))
		isFresh(t, second, 200)
		for range 2 {
			g.isOverQuota(g.send(withKey("c")))
			isReplay(t, g.send(withKey("a")), first)
			isReplay(t, g.send(withKey("b")), second)
			isProblem(t, g.send(withKey("a"), withBody("other")), "key-reused", 422)
			isProblem(t, g.send(withKey("running")), "in-progress", 409)
		}
		left := g.isOverQuota(g.send(withKey("c"), withHost("other.example")))
		if left < idempotency.DefaultRetention {
			t.Errorf("Retry-After is %v, before the first answer expires", left)
		}
		isFresh(t, g.send(withKey("c"), with("Authorization", "Bearer other")), 200)
		if w := g.send(with("Idempotency-Key")); w.Code != 200 {
			t.Errorf("a request without a key: %d", w.Code)
		}
		g.ran(5)
		close(gate.open)
		isFresh(t, <-running, 201)

		time.Sleep(left)
		isFresh(t, g.send(withKey("c")), 200)
		if e := g.last(); e.Attempt != 1 {
			t.Errorf("attempt %d after refusals; want 1, because nothing ran", e.Attempt)
		}
	})},
	{"Stored answers can have a quota", func(t *testing.T) {
		// An answer counts for its own retention, and an answer that is not kept does not count.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, &idempotency.Options{Quota: 2 * recordLength(t), Retention: 16 * time.Minute}, answerQuota)
			keep := with("X-Keep", "1")
			isFresh(t, g.send(withKey("long")), 200)
			isFresh(t, g.send(withKey("short"), keep), 200)
			left := g.isOverQuota(g.send(withKey("c")))
			if left < time.Minute || left > 2*time.Minute {
				t.Errorf("Retry-After is %v; the shorter retention is 1m", left)
			}
			time.Sleep(left)
			isFresh(t, g.send(withKey("short"), keep), 200)
			g.isOverQuota(g.send(withKey("c")))

			g = newRig(t, &idempotency.Options{Quota: 1}, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) })
			for range 3 {
				isFresh(t, g.send(), 500)
			}
			g.ran(3)
		})
	}},
	{"Stored answers can have a quota", func(t *testing.T) {
		// Without a scope, all clients are one principal.
		g := newRig(t, &idempotency.Options{Quota: 1, Scope: []idempotency.ScopePart{idempotency.ScopeNone}}, nil)
		isFresh(t, g.send(with("Authorization", "Bearer one")), 201)
		g.isOverQuota(g.send(withKey("b"), with("Authorization", "Bearer other")))
		w := g.send(withKey("c"), with("Content-Type", "application/grpc"), withBody(frameOf(0, "x")))
		if code := w.Header().Get("Grpc-Status"); code != "8" {
			t.Errorf("the status of gRPC is %q; want 8, RESOURCE_EXHAUSTED", code)
		}
		g.ran(1)
	}},
	{"Stored answers can have a quota", func(t *testing.T) {
		// Tombstones count, and answers that a transaction commits.
		g := newRig(t, &idempotency.Options{Quota: 1, MaxStored: 1}, nil)
		isFresh(t, g.send(), 201)
		g.isOverQuota(g.send(withKey("b")))
		isProblem(t, g.send(), "answer-not-kept", 410)

		g, j := newJournalRig(t, &idempotency.Options{Quota: 1}, write(http.StatusCreated))
		first := g.send()
		g.isOverQuota(g.send(withKey("b")))
		isReplay(t, g.send(), first)
		committed(t, j, 1)
	}},
	{"Stored answers can have a quota", func(t *testing.T) {
		// An answer that is stored later counts then. A refusal while the store is away frees the key
		// later.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, &idempotency.Options{Quota: 1, Retention: time.Hour}, nil)
			down := func(_ context.Context, op string) error {
				if op == "settle" {
					return errDown
				}
				return nil
			}
			g.store.fail(down)
			isFresh(t, g.send(withKey("a")), 201)
			g.store.heal()
			time.Sleep(time.Minute)
			g.store.fail(down)
			g.isOverQuota(g.send(withKey("b")))
			g.store.heal()
			time.Sleep(2 * time.Hour)
			isFresh(t, g.send(withKey("b")), 201)
			if e := g.last(); e.Attempt != 1 {
				t.Errorf("attempt %d after a refusal; want 1, because nothing ran", e.Attempt)
			}
			g.ran(2)
		})
	}},
}
