package dialect

import (
	"encoding/json"
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
