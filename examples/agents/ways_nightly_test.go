//go:build nightly

package main

import "github.com/modelcontextprotocol/go-sdk/mcp"

// The revisions of the protocol, with sessions and without, with streams that can be resumed, and with
// answers that are no streams.
func init() {
	for _, revision := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		ways = append(ways,
			way{revision + " in sessions", revision, mcp.StreamableHTTPOptions{}},
			way{revision + " in JSON", revision, mcp.StreamableHTTPOptions{JSONResponse: true}},
			way{revision + " resumed", revision, mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}},
		)
	}
	ways = append(ways, way{"2026-07-28 in JSON", "2026-07-28", mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}})
}
