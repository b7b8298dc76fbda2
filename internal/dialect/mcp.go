package dialect

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/content"
)

// MCP is an endpoint of the Model Context Protocol.
type MCP struct {
	// Windows are the tools whose calls need no key, and how long the answer to one counts.
	Windows map[string]time.Duration
	// Carries reports whether a request carries a message.
	Carries func(r *http.Request) bool
	// Client names the client of a request that belongs to no session.
	Client func(r *http.Request) string
	// Warn gets the name of a tool with a window that the server does not have.
	Warn func(r *http.Request, tool string)

	calls calls
	tools *tools
}

// NewMCP returns an endpoint whose other fields the caller sets.
func NewMCP(windows map[string]time.Duration) *MCP {
	return &MCP{Windows: windows, tools: newTools(windows)}
}

// Speak returns the dialect of a request, and the request with a context that has it for ID.
func (e *MCP) Speak(r *http.Request) (Dialect, *http.Request) {
	x := &mcpRequest{Dialect: Of(r.Header), mcp: e}
	x.r = r.WithContext(context.WithValue(r.Context(), idKey{}, &x.message))
	return x, x.r
}

type idKey struct{}

// ID returns the id of the message that a request has carried; nil if there is none.
func ID(ctx context.Context) json.RawMessage {
	if m, _ := ctx.Value(idKey{}).(*message); m != nil {
		return m.id
	}
	return nil
}

// IsMCP reports whether a request was sent to an endpoint of MCP.
func IsMCP(ctx context.Context) bool {
	_, ok := ctx.Value(idKey{}).(*message)
	return ok
}

// CallPrefix is what the names of keys of calls begin with.
const CallPrefix = "mcp:"

// An mcpRequest is a request to an endpoint of MCP. In all that MCP does not say it is as over HTTP.
type mcpRequest struct {
	Dialect
	mcp     *MCP
	r       *http.Request
	message message
}

// Read reads the message. A DELETE ends a session.
func (x *mcpRequest) Read(body io.ReadSeeker) (Call, error) {
	m, e := &x.message, x.mcp
	switch {
	case body == nil && x.r.Method == http.MethodDelete && e.calls.inSession(x.name):
		return Call{Kind: SessionEnd}, nil
	case body == nil && !e.Carries(x.r):
		return Call{Kind: Unguarded}, nil
	case body == nil:
		return Call{Kind: Unread}, nil
	}
	in, err := content.Open(x.r.Header["Content-Encoding"], body)
	if err == nil {
		err = m.readAll(in, e.Windows)
	}
	switch {
	case err != nil:
		return Call{}, err
	case !m.call && e.calls.cancelled(x.name, m.cancels):
		return Call{Kind: Cancellation}, nil
	case m.lists:
		return Call{Kind: Listing}, nil
	case !m.call:
		return Call{Kind: Unguarded}, nil
	}
	e.tools.called(m, x.warn)
	// Two calls are compared by their params alone, and no other tool and no other target may answer.
	c := Call{Asked: &m.asked, Name: content.AppendCounted(content.AppendCounted(nil, TargetOf(x.r)), m.tool), Keyless: m.id == nil}
	if m.window > 0 {
		c.Key, c.Retention = "call:"+base64.RawURLEncoding.EncodeToString(m.asked[:]), m.window
	}
	c.Begin = func() func() { return e.calls.enter(x.name, m.id) }
	return c, nil
}

// name is the callName of calls that belong to the request's client. A session is one client. Without
// one, MCP.Client tells clients apart.
func (x *mcpRequest) name(id string) (call, session string) {
	if session := x.r.Header.Get(sessionField); session != "" {
		session = string(content.AppendCounted([]byte("session"), session))
		return session + id, session
	}
	return "principal" + x.mcp.Client(x.r) + id, ""
}

func (x *mcpRequest) warn(tool string) { x.mcp.Warn(x.r, tool) }

// Forward makes the request of a message accept no encoding, because the answer could not be read.
func (x *mcpRequest) Forward(h http.Header) http.Header {
	h = x.Dialect.Forward(h).Clone()
	h.Set("Accept-Encoding", "identity") // RFC 9110, 12.5.3: without the field, any may be sent
	return h
}

// Listen returns what finds the response to a call in the answer, or the list of tools.
func (x *mcpRequest) Listen(status int, h http.Header, limit int64) Listener {
	base := x.Dialect.Listen(status, h, limit)
	switch {
	case status/100 != 2:
	case x.message.call:
		return &mcpAnswer{replies: newReplies(h, limit), http: base}
	case x.message.lists:
		return &toolList{mcpAnswer{replies: newReplies(h, limit), http: base}, x}
	}
	return base
}

// An mcpAnswer is an answer that may have the response to a call. It keeps what is of use.
type mcpAnswer struct {
	*replies
	http Listener
}

// Write returns false.
func (a *mcpAnswer) Write(p []byte) bool {
	a.write(p)
	return false
}

// End returns the meaning of the response. A response that is missing, or not the only one, is not an
// outcome. Notifications are not stored: they name the progress token of the first request, and requests
// of the server and ids of events its stream, and are of no use to another.
func (a *mcpAnswer) End(whole Answer) Result {
	if !whole.Streamed {
		a.all(whole.Body)
	}
	a.finish()
	none := a.n != 1
	if a.first == nil {
		r := a.http.End(whole)
		return Result{Status: r.Status, None: none}
	}
	return Result{Status: a.first.status, None: none, Cut: a.first.text == nil, Body: a.first.text}
}

// A toolList is an answer that may have a list of tools.
type toolList struct {
	mcpAnswer
	of *mcpRequest
}

// End notes the list.
func (l *toolList) End(whole Answer) Result {
	result := l.mcpAnswer.End(whole)
	if l.first != nil {
		l.of.mcp.tools.listed(l.first.text, l.of.warn)
	}
	return result
}

// ofOneMessage are the headers that hold only with the id of the first request: clients would take
// Mcp-Session-Id for a new session, and the others name the body's bytes (RFC 9530, RFC 3230, RFC 1864,
// RFC 9110 section 8.8.3).
var ofOneMessage = []string{"Mcp-Session-Id", "Content-Digest", "Repr-Digest", "Digest", "Content-Md5", "Etag"}

// Replay makes a stored response one to the request: with its id, and as a stream if the client accepts
// nothing else.
func (x *mcpRequest) Replay(h http.Header, body []byte) []byte {
	for _, name := range ofOneMessage {
		delete(h, name)
	}
	stored := replyOf(body)
	if stored == nil {
		return body
	}
	body = slices.Concat(stored.text[:stored.from], x.message.id, stored.text[stored.to:])
	accept := strings.ToLower(strings.Join(x.r.Header["Accept"], ","))
	if strings.Contains(accept, "text/event-stream") && !strings.Contains(accept, "application/") && !strings.Contains(accept, "*/*") {
		h["Content-Type"] = []string{"text/event-stream"}
		body = []byte("event: message\ndata: " + strings.ReplaceAll(lineEnds.Replace(string(body)), "\n", "\ndata: ") + "\n\n")
	}
	return body
}
