package main

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// pay calls the tool until it hears an answer. Each try is a new request with a new id. What they have
// in common is the key of the intent.
func pay(ctx context.Context, url string, network http.RoundTripper, id string) (string, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: network}}, nil)
	if err != nil {
		return "", err
	}
	defer session.Close()
	call := mcp.CallToolParams{
		Meta:      mcp.Meta{"io.github.dibs-go/idempotency-key": "pay " + id},
		Name:      "charge",
		Arguments: order{ID: id, Cents: 1200},
	}
	for try := 1; ; try++ {
		result, err := session.CallTool(ctx, &call)
		switch {
		case err == nil:
			return result.Content[0].(*mcp.TextContent).Text, nil
		case try == 5:
			return "", err
		}
	}
}

// losing is a network that loses the first answers to calls of tools.
type losing struct{ answers, calls int }

// RoundTrip sends a request, and may lose its answer after the server has written all of it.
func (n *losing) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || r.Header.Get("Mcp-Method") != "tools/call" {
		return res, err
	}
	if n.calls++; n.calls > n.answers {
		return res, nil
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return nil, errors.New("the connection was lost")
}
