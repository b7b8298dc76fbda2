package main

import (
	"testing"

	"github.com/dibs-go/dibs/internal/house"
)

// The map of the agents: one room, which knows the SDK.
func TestHouse(t *testing.T) {
	house.Check(t, []house.Room{{
		Dir:     ".",
		Imports: []string{"github.com/modelcontextprotocol/go-sdk/mcp"},
		Tests:   []string{"github.com/modelcontextprotocol/go-sdk/jsonrpc", house.Root + "/internal/house", house.Root + "/internal/servertest", house.Root + "/internal/testkit"},
	}})
}
