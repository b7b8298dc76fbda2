package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/content"
)

// MCPKey is the member of params._meta in which MCPOptions looks for the key. The Model Context Protocol
// defines none.
const MCPKey = "io.github.dibs-go/idempotency-key"

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
		MCP:          true,
		Key:          KeyJSON("/params/_meta/" + strings.ReplaceAll(MCPKey, "/", "~1")),
		Keep:         []string{"2xx"},
		Wait:         30 * time.Second,
		OnCrash:      AtMostOnce,
		WriteProblem: WriteJSONRPCError,
	}
}

// A message is what a client of MCP sends. The request's context carries it.
type message struct {
	id      json.RawMessage // that answers repeat; nil if there is none
	call    bool            // of a tool
	lists   bool            // the tools, and there are windows
	cancels []string        // the IDs of requests that it cancels, as callID has them
	tool    string
	asked   dibs.Fingerprint
	window  time.Duration // of Options.ToolWindows for the tool
}

type messageKey struct{}

// messageOf returns the message of a request; nil if the request has none.
func messageOf(ctx context.Context) *message {
	m, _ := ctx.Value(messageKey{}).(*message)
	return m
}

var (
	errNoMessage = errors.New("the body is no JSON-RPC message")
	errCall      = errors.New("a call needs an id that is a string or a number, and cannot be guarded in a batch")
)

// readCall reads the request's message, which its context then carries. If that is no call, or none
// that can be guarded, the request has been served, and readCall reports false.
func (x *exchange) readCall() bool {
	m, err := x.req.readMessage(&x.m.options)
	x.req.Request = x.req.WithContext(context.WithValue(x.req.Context(), messageKey{}, m))
	switch {
	case err == errCall:
		x.event.Err = err
		x.refuse(EventInvalid, problemCall)
	case err != nil:
		x.refuseInside(err, problemNoMessage)
	case m.call:
		x.m.tools.called(m, x.warnTool)
		return true
	case x.m.calls.cancelled(x.nameCall, m.cancels):
		x.holdBack()
	case m.lists:
		x.unguarded(withoutEncoding(x.req.withBody(x.req.Context())))
	default:
		x.unguarded(x.req.withBody(x.req.Context()))
	}
	return false
}

// readMessage reads the request's message. It returns errCall for a batch with a call.
func (r *request) readMessage(o *Options) (*message, error) {
	m := new(message)
	defer r.body.within.end()
	in, err := content.Open(r.Header["Content-Encoding"], r.body.inside())
	if err != nil {
		return m, err
	}
	d := content.NewDocument(in)
	first, err := d.Token()
	if first == json.Delim('[') { // which revision 2025-03-26 alone has
		err = d.Each(func(int) error {
			first, _ := d.Token()
			one := new(message)
			if err := one.read(d, first, in, o); err != nil || !one.call {
				m.cancels = append(m.cancels, one.cancels...)
				return err
			}
			return errCall
		})
	} else if err == nil {
		err = m.read(d, first, in, o)
	}
	if err == nil {
		err = d.End()
	}
	return m, cmp.Or(in.Err(), err)
}

// read reads a message of the content, whose first token was read.
func (m *message) read(d *content.Document, first json.Token, in *content.Reader, o *Options) error {
	all, err := d.Members(first, "jsonrpc", "id", "method", "params", "result", "error")
	var method string
	if isCallID(all["id"]) && err == nil {
		m.id = all["id"]
	}
	switch {
	case err != nil:
		return err
	case all["method"] == nil && (all["result"] != nil || all["error"] != nil): // a response of the client
		return nil
	case json.Unmarshal(all["method"], &method) != nil:
		return errNoMessage
	case strings.EqualFold(method, "notifications/cancelled"):
		return m.readCancelled(all["params"], in)
	case !strings.EqualFold(method, "tools/call"): // some servers read methods in any case, too
		m.lists = method == "tools/list" && len(o.ToolWindows) > 0
		return nil
	}
	members, err := in.MembersOf(all["params"], "name", "arguments", "_meta")
	if err == nil && json.Unmarshal(members["name"], &m.tool) != nil {
		err = errNoMessage
	}
	if err != nil {
		return err
	}
	delete(members, "_meta")
	m.call, m.window = true, o.ToolWindows[m.tool]
	m.asked, err = digestOf(members, in)
	return err
}

// readCancelled reads the params of a notification that cancels a request.
func (m *message) readCancelled(params json.RawMessage, in *content.Reader) error {
	members, err := in.MembersOf(params, "requestId")
	if id := members["requestId"]; err == nil && isCallID(id) {
		m.cancels = append(m.cancels, callID(id))
	}
	return err
}

// digestOf returns the fingerprint of a call's params, which are parts of the content. Those that have
// no canonical form are compared byte by byte, without white space.
func digestOf(params map[string]json.RawMessage, in *content.Reader) (dibs.Fingerprint, error) {
	text := []byte("dibs mcp fingerprint 1\x00")
	for _, name := range slices.Sorted(maps.Keys(params)) {
		inside, form := in.Inside(params[name]), byte('j')
		sum, err := content.CanonicalJSON(inside)
		held := inside.Err()
		if held == nil && err != nil {
			held = inside.Hold(int64(len(params[name])))
		}
		if held != nil {
			return dibs.Fingerprint{}, held
		}
		if err != nil {
			var plain bytes.Buffer
			_ = json.Compact(&plain, params[name]) // which was JSON
			digest := sha256.Sum256(plain.Bytes())
			sum, form = digest[:], 'b'
		}
		text = append(append(content.AppendCounted(text, name), form), sum...)
	}
	return sha256.Sum256(text), nil
}

// finish ends the answer, and finds the reply of a call in it. It reports whether the answer is whole:
// a reply that is missing, or not the only one, is no outcome.
func (r *run) finish() (whole bool) {
	w := r.answer
	whole, r.reply = w.finish(), nil
	if w.replies == nil {
		return whole
	}
	r.reply = w.replies.first
	return whole && w.replies.n == 1
}

// keepReply makes an answer one with nothing but the reply. Notifications name the progress token of the
// first request, and requests of the server and ids of events its stream, and are of no use to another.
func (a *Answer) keepReply(r *reply) {
	a.Body = r.text
	a.Header["Content-Type"] = []string{"application/json"}
}

// ofOneMessage are the headers that hold only with the id of the first request: clients would take
// Mcp-Session-Id for a new session, and the others name the body's bytes (RFC 9530, RFC 3230, RFC 1864,
// RFC 9110 section 8.8.3).
var ofOneMessage = []string{"Mcp-Session-Id", "Content-Digest", "Repr-Digest", "Digest", "Content-Md5", "Etag"}

// replyTo makes a stored answer one to another request: with its id, and as a stream if the client
// accepts nothing else.
func (a *Answer) replyTo(r *http.Request, m *message) {
	for _, name := range ofOneMessage {
		delete(a.Header, name)
	}
	stored := replyOf(a.Body)
	if stored == nil {
		return
	}
	a.Body = slices.Concat(stored.text[:stored.from], m.id, stored.text[stored.to:])
	accept := strings.ToLower(strings.Join(r.Header["Accept"], ","))
	if strings.Contains(accept, "text/event-stream") && !strings.Contains(accept, "application/") && !strings.Contains(accept, "*/*") {
		a.Header["Content-Type"] = []string{"text/event-stream"}
		a.Body = []byte("event: message\ndata: " + strings.ReplaceAll(lineEnds.Replace(string(a.Body)), "\n", "\ndata: ") + "\n\n")
	}
}
