package dialect

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/content"
)

// A message is what a client of MCP sends.
type message struct {
	id      json.RawMessage // that answers repeat; nil if there is none
	call    bool            // of a tool
	lists   bool            // the tools, and there are windows
	cancels []string        // the IDs of requests that it cancels, as callID has them
	tool    string
	asked   [32]byte      // its fingerprint
	window  time.Duration // for the tool
}

// ErrCall: the message is a call that cannot be guarded.
var ErrCall = errors.New("a call needs an id that is a string or a number, and cannot be guarded in a batch")

var errNoMessage = errors.New("the body is not a JSON-RPC message")

// readAll reads the message of a body. It returns ErrCall for a batch with a call.
func (m *message) readAll(in *content.Reader, windows map[string]time.Duration) error {
	d := content.NewDocument(in)
	first, err := d.Token()
	if first == json.Delim('[') { // which revision 2025-03-26 alone has
		err = d.Each(func(int) error {
			first, _ := d.Token()
			one := new(message)
			if err := one.read(d, first, in, windows); err != nil || !one.call {
				m.cancels = append(m.cancels, one.cancels...)
				return err
			}
			return ErrCall
		})
	} else if err == nil {
		err = m.read(d, first, in, windows)
	}
	if err == nil {
		err = d.End()
	}
	return cmp.Or(in.Err(), err)
}

// read reads a message of the content, whose first token was read.
func (m *message) read(d *content.Document, first json.Token, in *content.Reader, windows map[string]time.Duration) error {
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
		m.lists = method == "tools/list" && len(windows) > 0
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
	m.call, m.window = true, windows[m.tool]
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
func digestOf(params map[string]json.RawMessage, in *content.Reader) ([32]byte, error) {
	text := []byte("dibs mcp fingerprint 1\x00")
	for _, name := range slices.Sorted(maps.Keys(params)) {
		inside, form := in.Inside(params[name]), byte('j')
		sum, err := content.CanonicalJSON(inside)
		held := inside.Err()
		if held == nil && err != nil {
			held = inside.Hold(int64(len(params[name])))
		}
		if held != nil {
			return [32]byte{}, held
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
