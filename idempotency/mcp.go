package idempotency

import (
	"net/http"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/content"
	"github.com/dibs-go/dibs/internal/dialect"
)

// MCPKey is the member of params._meta in which MCPOptions looks for the key. The Model Context Protocol
// defines none.
const MCPKey = "io.github.dibs-go/idempotency-key"

// MCP says how calls of tools are guarded; see Options.MCP.
type MCP struct {
	// ToolWindows are the tools whose calls need no key: for this long after one, an equal call of the
	// same principal gets its answer. The Logger gets a warning for a tool that no call and no list of
	// tools has named. Default: none.
	ToolWindows map[string]time.Duration
}

// MCPOptions returns options for an endpoint of the Model Context Protocol (streamable HTTP, revisions
// 2025-03-26 to 2026-07-28); see Options.MCP. Change them as needed.
//
//   - The key is the member MCPKey of params._meta. It counts for one tool at one target, query included.
//   - Only results are kept. One with isError counts as status 500, an error of JSON-RPC too, and a
//     request for more input as 409.
//   - A duplicate waits for the first for up to 30 s, half of what clients commonly wait.
//   - A call whose run left no outcome is not run again (AtMostOnce). With a Transactor, set TakeOver.
//   - Refusals are errors of JSON-RPC (WriteJSONRPCError).
func MCPOptions() *Options {
	return &Options{
		MCP:          new(MCP),
		Key:          KeyJSON("/params/_meta/" + strings.ReplaceAll(MCPKey, "/", "~1")),
		Keep:         []string{"2xx"},
		Wait:         30 * time.Second,
		OnCrash:      AtMostOnce,
		WriteProblem: WriteJSONRPCError,
	}
}

// dialects returns what finds the dialect of a request.
func (m *Middleware) dialects() func(*http.Request) (dialect.Dialect, *http.Request) {
	if m.options.MCP == nil {
		return func(r *http.Request) (dialect.Dialect, *http.Request) { return dialect.Of(r.Header), r }
	}
	endpoint := dialect.NewMCP(m.options.MCP.ToolWindows)
	endpoint.Carries, endpoint.Warn = carriesMessage, m.warnTool
	endpoint.Client = func(r *http.Request) string {
		return string(content.AppendCounted(content.AppendCounted(nil, authority(r)), string(m.options.principal(r))))
	}
	return endpoint.Speak
}

// warnTool warns of a window that guards nothing.
func (m *Middleware) warnTool(r *http.Request, tool string) {
	m.options.Logger.Warn("a window is for a tool that the server does not have, as far as its calls and lists of tools say: it guards nothing. "+
		"Check the tool's name (MCP.ToolWindows)", "tool", tool, "path", r.URL.Path)
}

// mcpTexts are what a refusal says to the model that reads it, by the problem's name: what to do next.
// AGAIN stands for when and how to call again.
var mcpTexts = map[string]string{
	problemInProgress.Name:  "The same call still runs. AGAIN to get its result.",
	problemUnknown.Name:     "An earlier call with this key may or may not have taken effect, and it is not made again. Do not call with another key, because then it may be done twice. Report this; an operator decides.",
	problemNotKept.Name:     "The call was made, but its result was not kept. Do not call again: it would be done twice.",
	problemMismatch.Name:    "This key belongs to a call with other arguments. Repeat that call's arguments, or use a new key if this is another intent.",
	problemKeyRequired.Name: "The call has no key. Send one that names the intent, by default in params._meta[\"" + MCPKey + "\"], and the same one with each retry.",
	problemUnavailable.Name: "The call was not made. AGAIN.",
	problemOverloaded.Name:  "The call was not made. AGAIN.",
	problemNoRoom.Name:      "The call was not made. AGAIN.",
	problemUnreached.Name:   "The call was not made, because the server of the tool could not be reached. AGAIN.",
	problemLost.Name:        "It is not known how this call ended. AGAIN to get its result.",
	problemHungUp.Name:      "The server of the tool hung up. The call may or may not have taken effect. AGAIN, and with no other key.",
	problemBrokeOff.Name:    "The result of the tool broke off. The call may or may not have taken effect. AGAIN, and with no other key.",
	problemTimedOut.Name:    "The tool took too long. The call may or may not have taken effect. AGAIN, and with no other key.",
}

// mcpText returns what a refusal of an endpoint of MCP says.
func (p Problem) mcpText() string {
	text, ok := mcpTexts[p.Name]
	if !ok {
		return p.text()
	}
	again := "Call again with the same key"
	if p.RetryAfter > 0 {
		again = "Call again in " + retryAfterOf(p) + " s with the same key"
	}
	if text = strings.ReplaceAll(text, "AGAIN", again); p.Instance != "" {
		text += " (" + p.Instance + ")"
	}
	return text
}
