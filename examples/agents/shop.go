package main

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// shop has a tool that charges a card. It knows nothing of keys.
type shop struct{ n atomic.Int64 }

type order struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

// charge charges the card.
func (s *shop) charge(context.Context, *mcp.CallToolRequest, order) (*mcp.CallToolResult, any, error) {
	text := fmt.Sprintf("charge %d", s.n.Add(1))
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
}

// charges returns how often the card was charged.
func (s *shop) charges() int64 { return s.n.Load() }

// handler serves the tool over streamable HTTP, as the revision 2026-07-28 has it.
func (s *shop) handler() http.Handler {
	return serve(s.charge, &mcp.StreamableHTTPOptions{Stateless: true})
}

// serve serves a tool that charges.
func serve(charge mcp.ToolHandlerFor[order, any], o *mcp.StreamableHTTPOptions) http.Handler {
	server := mcp.NewServer(&mcp.Implementation{Name: "shop", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "charge", Description: "Charges the card for an order."}, charge)
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, o)
}
