package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// noting is the network of a client. It notes cancellations that were answered.
type noting struct{ cancelled chan int }

// RoundTrip sends a request.
func (n *noting) RoundTrip(r *http.Request) (*http.Response, error) {
	var text []byte
	if r.Body != nil {
		var err error
		if text, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(text))
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && bytes.Contains(text, []byte("notifications/cancelled")) {
		n.cancelled <- res.StatusCode
	}
	return res, err
}

// TestCancelled: a client whose patience ends cancels its call, and then ends its session. The tool stops
// when it is cancelled. Behind the proxy it runs to its end, and the next try hears the result.
func TestCancelled(t *testing.T) {
	t.Parallel()
	const revision = "2025-06-18"
	s, charging, answer, cancelled := new(shop), make(chan struct{}, 9), make(chan struct{}), new(atomic.Int64)
	slow := func(ctx context.Context, r *mcp.CallToolRequest, o order) (*mcp.CallToolResult, any, error) {
		charging <- struct{}{}
		select {
		case <-answer:
			return s.charge(ctx, r, o)
		case <-ctx.Done():
			cancelled.Add(1)
			return nil, nil, ctx.Err()
		}
	}
	var messages atomic.Int64 // that end a call
	tools := serve(slow, &mcp.StreamableHTTPOptions{})
	url := proxied(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			messages.Add(1)
		}
		tools.ServeHTTP(w, r)
	}))
	network := &noting{make(chan int, 9)}
	transport := &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: network}}
	impatient, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	testkit.Must(t, err)
	ctx, giveUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := impatient.CallTool(ctx, &mcp.CallToolParams{Meta: mcp.Meta{keyMember: "k"}, Name: "charge", Arguments: order{ID: "k", Cents: 1200}})
		gone <- err
	}()
	testkit.Await(t, "the tool runs", charging)
	giveUp() // the SDK sends notifications/cancelled
	if err := testkit.Await(t, "the client has given up", gone); err == nil {
		t.Fatal("the client heard a result")
	}
	if status := testkit.Await(t, "the cancellation is answered", network.cancelled); status != http.StatusAccepted {
		t.Errorf("the cancellation is answered %d", status)
	}
	_ = impatient.Close() // the SDK sends DELETE
	if n := messages.Load(); n != 0 {
		t.Errorf("the server got %d requests to end the session", n)
	}
	patient := newCaller(t, url, revision)
	heard := make(chan string, 1)
	go func() {
		text, err := patient.call(t.Context(), "k")
		testkit.Check(t, err)
		heard <- text
	}()
	close(answer)
	if text := testkit.Await(t, "the next try", heard); text != "charge 1" || s.charges() != 1 || cancelled.Load() != 0 {
		t.Errorf("the next try heard %q, after %d charges and %d cancellations", text, s.charges(), cancelled.Load())
	}
}
