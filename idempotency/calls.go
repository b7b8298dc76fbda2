package idempotency

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"

	"github.com/dibs-go/dibs/internal/content"
)

// sessionField names the session of MCP that a request belongs to.
const sessionField = "Mcp-Session-Id"

// isCallID reports whether a value can be the id of a call: a string or a number.
func isCallID(id json.RawMessage) bool {
	return len(id) > 0 && strings.IndexByte(`"-0123456789`, id[0]) >= 0
}

// callID returns an id as the most tolerant server compares it: a number by its value, and a string
// that is a number as that.
func callID(id json.RawMessage) string {
	var text string
	if json.Unmarshal(id, &text) != nil {
		text = string(id)
	}
	if strings.Trim(text, "-+.eE0123456789") == "" && json.Valid([]byte(text)) {
		return content.Number(text)
	}
	return text
}

// calls are the guarded calls of tools that run or wait in this process, so that no other message ends
// them: their names, and how often each is there.
type calls struct {
	mu    sync.Mutex
	names map[string]int
}

// A callName returns the name under which a call with the ID is found, and that of all calls of its
// session; "" if it has no session.
type callName func(id string) (call, session string)

// nameCall is the callName of calls that belong to the request's client. A session is one client. Without
// one, the clients with the request's principal are one.
func (x *exchange) nameCall(id string) (call, session string) {
	if session := x.req.Header.Get(sessionField); session != "" {
		session = string(content.AppendCounted([]byte("session"), session))
		return session + id, session
	}
	b := content.AppendCounted([]byte("principal"), authority(x.req.Request))
	return string(content.AppendCounted(b, string(x.m.options.principal(x.req.Request)))) + id, ""
}

// enter makes a call known. The caller calls leave when it has ended.
func (c *calls) enter(name callName, id json.RawMessage) (leave func()) {
	call, session := name(callID(id))
	change := func(by int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, name := range []string{call, session} {
			if c.names == nil {
				c.names = make(map[string]int)
			}
			if c.names[name] += by; c.names[name] == 0 {
				delete(c.names, name)
			}
		}
	}
	change(1)
	return func() { change(-1) }
}

// cancelled reports whether one of the IDs is that of a call which runs.
func (c *calls) cancelled(name callName, ids []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if call, _ := name(id); c.names[call] > 0 {
			return true
		}
	}
	return false
}

// inSession reports whether a call of the session runs.
func (c *calls) inSession(name callName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, session := name("")
	return session != "" && c.names[session] > 0
}

// holdBack accepts a notification, and does not pass it on: it would end a guarded call, whose retry
// then found no outcome.
func (x *exchange) holdBack() {
	x.event.Status = http.StatusAccepted
	x.w.WriteHeader(http.StatusAccepted)
	x.observe(EventHeldBack)
}

// keepSession refuses to end a session in which a guarded call runs. Servers may refuse that at any
// time (405).
func (x *exchange) keepSession() {
	x.w.Header().Set("Allow", "GET, POST")
	x.refuseUnread(EventHeldBack, problemSession)
}
