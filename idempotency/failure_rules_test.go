package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

var failureRules = []rule{
	{"Without a store nothing runs", inBubble(func(t *testing.T) {
		g := newRig(t, nil, nil)
		for name, f := range map[string]func(context.Context, string) error{
			"refuses": func(context.Context, string) error { return errDown },
			"hangs":   func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() },
		} {
			g.store.fail(f)
			start := time.Now()
			w := g.send()
			isProblem(t, w, "store-unavailable", 503)
			retryAfter(t, w, 30)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("a store that %s: answered after %v", name, took)
			}
			if e := g.last(); e.Kind != idempotency.EventUnavailable || e.Err == nil {
				t.Errorf("observed %+v", e)
			}
		}
		g.store.heal()
		g.ran(0)
		time.Sleep(time.Minute)
		isFresh(t, g.send(), 201)
	})},
	{"Without a store everything can run", inBubble(func(t *testing.T) {
		g := newRig(t, &idempotency.Options{OnStoreFailure: idempotency.FailOpen}, func(w http.ResponseWriter, r *http.Request) {
			if _, ok := leaseOf(r); ok {
				t.Error("a bypassed request has a lease")
			}
			if idempotency.Fail(r.Context(), idempotency.HungUp) {
				t.Error("Fail works on a bypassed request")
			}
			w.Header().Set("Idempotency-Control", "no-store")
			var b bytes.Buffer
			_, _ = b.ReadFrom(r.Body)
			w.WriteHeader(http.StatusAccepted)
			_, _ = w.Write(b.Bytes())
		})
		g.store.fail(func(context.Context, string) error { return errDown })
		for range 2 {
			w := g.send(withBody("whole"))
			isFresh(t, w, 202)
			res := w.Result()
			if res.Header.Get("Idempotency-Bypassed") != "store-unavailable" || res.Header.Get("Idempotency-Control") != "" || w.Body.String() != "whole" {
				t.Errorf("header %v, body %q", res.Header, w.Body)
			}
		}
		g.ran(2)
		if e := g.last(); e.Kind != idempotency.EventBypassed || e.Status != 202 {
			t.Errorf("observed %+v", e)
		}
		g.store.heal()
	})},
	{"Refusals are never stored", inBubble(func(t *testing.T) {
		g := newRig(t, &idempotency.Options{MaxBody: 100}, nil)
		g.store.fail(func(context.Context, string) error { return errDown })
		g.send() // 503
		g.store.heal()
		time.Sleep(time.Minute)
		g.send(withBody(strings.Repeat("x", 101))) // 413
		g.send(with("Idempotency-Key", "k", "k"))  // 400
		isFresh(t, g.send(), 201)
		first := g.send()
		g.send(withBody("other")) // 422
		isReplay(t, g.send(), first)

		// An application's own 410 is an answer like any other.
		app := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "taken", http.StatusGone) })
		first = app.send()
		isReplay(t, app.send(), first)
		app.ran(1)
	})},
	{"Failures of the origin are distinguished", func(t *testing.T) {
		for _, test := range []struct {
			failure idempotency.Failure
			name    string
			status  int
			free    bool // under AtMostOnce, too
		}{
			{idempotency.Unreached, "origin-unreachable", 502, true},
			{idempotency.HungUp, "origin-hung-up", 502, false},
			{idempotency.TimedOut, "origin-timeout", 504, false},
			{idempotency.BrokeOff, "origin-broke-off", 502, false},
		} {
			for _, policy := range []idempotency.Crash{idempotency.TakeOver, idempotency.AtMostOnce} {
				fails := true
				g := newRig(t, &idempotency.Options{OnCrash: policy, Keep: []string{"default", "5xx"}}, func(w http.ResponseWriter, r *http.Request) {
					if !fails {
						return
					}
					w.Header().Set("Content-Encoding", "gzip")
					w.WriteHeader(http.StatusOK)
					_, _ = w.Write([]byte("half an answer"))
					if !idempotency.Fail(r.Context(), test.failure) {
						t.Error("Fail does not know the request")
					}
				})
				w := g.send()
				isProblem(t, w, test.name, test.status)
				if w.Header().Get("Content-Encoding") != "" {
					t.Error("the broken answer's header got through")
				}
				fails = false
				if policy == idempotency.TakeOver || test.free {
					isFresh(t, g.send(), 200)
				} else {
					isProblem(t, g.send(), "outcome-unknown", 409)
				}
			}
		}
		// When bytes have left, the transfer breaks.
		g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("half"))
			w.(http.Flusher).Flush()
			idempotency.Fail(r.Context(), idempotency.BrokeOff)
		})
		if w := g.sendBroken(); w.Body.String() != "half" {
			t.Errorf("sent %q", w.Body)
		}
		if idempotency.Fail(t.Context(), idempotency.HungUp) {
			t.Error("Fail knows a request that is not guarded")
		}
	}},
	{"An answer outlives a failing store", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, nil, nil)
			g.store.fail(failing("settle", errDown))
			first := g.send()
			isFresh(t, first, 201)
			if e := g.last(); !e.StoreFailed || e.Stored || !errors.Is(e.Err, dibs.ErrStore) {
				t.Errorf("observed %+v", e)
			}
			isProblem(t, g.send(), "in-progress", 409)
			other := newRigOn(t, g.store, nil, nil)
			isProblem(t, other.send(), "in-progress", 409)
			g.store.heal()
			testkit.Check(t, g.m.Drain(t.Context()))
			isReplay(t, other.send(), first)
			isReplay(t, g.send(), first)
			g.ran(1)
			other.ran(0)
		})
		// Only while the lease stands.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, nil, nil)
			g.store.fail(func(_ context.Context, op string) error {
				if op == "claim" {
					return nil
				}
				return errDown
			})
			isFresh(t, g.send(), 201)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := g.m.Drain(ctx); err != context.DeadlineExceeded {
				t.Errorf("Drain: %v", err)
			}
			testkit.Check(t, g.m.Drain(t.Context()))
			g.store.heal()
			time.Sleep(time.Minute)
			isFresh(t, g.send(), 201)
		})
		// A store that hangs does not hold the answer up for long.
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, nil, nil)
			g.store.fail(func(ctx context.Context, op string) error {
				if op == "settle" {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			})
			start := time.Now()
			isFresh(t, g.send(), 201)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("the answer came after %v", took)
			}
			g.store.heal()
			testkit.Check(t, g.m.Drain(t.Context()))
		})
	}},
}
