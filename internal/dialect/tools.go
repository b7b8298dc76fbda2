package dialect

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"
)

// tools are the tools with a window that nobody has heard of yet: no call and no list of tools
// has named them.
type tools struct {
	mu      sync.Mutex
	unknown map[string]bool
}

// newTools returns the tools with these windows.
func newTools(windows map[string]time.Duration) *tools {
	t := &tools{unknown: make(map[string]bool)}
	for name := range windows {
		t.unknown[name] = true
	}
	return t
}

// called notes a call. If it is of another tool than those with a window, warn is called for each of
// those that is still unknown, once.
func (t *tools) called(m *message, warn func(tool string)) {
	t.heard([]string{m.tool}, m.window == 0, warn)
}

// listed notes a list of tools. If it is the last part of the list, it is as a call of another tool.
func (t *tools) listed(text []byte, warn func(tool string)) {
	var m struct {
		Result struct {
			Tools      []struct{ Name string }
			NextCursor string
		}
	}
	if json.Unmarshal(text, &m) != nil || m.Result.Tools == nil {
		return
	}
	names := make([]string, len(m.Result.Tools))
	for i, tool := range m.Result.Tools {
		names[i] = tool.Name
	}
	t.heard(names, m.Result.NextCursor == "", warn)
}

// heard notes the names of tools. If there are others, warn is called for each that is still unknown.
func (t *tools) heard(names []string, others bool, warn func(tool string)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		delete(t.unknown, name)
	}
	if !others {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(t.unknown)) {
		warn(name)
	}
	clear(t.unknown)
}
