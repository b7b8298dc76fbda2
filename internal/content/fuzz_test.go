package content

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
)

// FuzzParseKey: whatever is accepted is a key, and strict mode accepts less but
// nothing else.
func FuzzParseKey(f *testing.F) {
	f.Add(`"abc"`)
	f.Add(`abc`)
	f.Fuzz(func(t *testing.T, value string) {
		key, err := ParseKey(value, false)
		if err == nil && CheckKey(key) != nil {
			t.Errorf("%q is accepted as the key %q", value, key)
		}
		if err != nil && key != "" && len(key) <= MaxKey && CheckKey(key) == nil {
			t.Errorf("%q: a valid key %q with an error: %v", value, key, err)
		}
		if _, ours := errors.AsType[KeyError](err); err != nil && !ours {
			t.Errorf("%q is refused with an error that clients do not get: %v", value, err)
		}
		strict, strictErr := ParseKey(value, true)
		if strictErr == nil && (err != nil || strict != key) {
			t.Errorf("strict: %q; otherwise %q, %v", strict, key, err)
		}
		if err != nil {
			return
		}
		quoted, err := QuoteKey(key)
		if err != nil {
			t.Errorf("the key %q cannot be sent: %v", key, err)
		}
		if again, err := ParseKey(quoted, true); err != nil || again != key {
			t.Errorf("%s is parsed as %q, %v; want %q", quoted, again, err, key)
		}
	})
}

// FuzzPath: only a valid document has a key, and it is the one that decoding the document finds.
func FuzzPath(f *testing.F) {
	f.Add([]byte(`{"id":"a","b":[1,{"id":2}]}`))
	f.Add([]byte(`[{"id":"a"},{"b":null,"id":1e3}]`))
	f.Add([]byte(`{"b":{"id":1},"id":"\u0061,","c":1,}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		key, err := PathOf("id").Key(nil, bytes.NewReader(text))
		if key != "" && (err != nil || !json.Valid(text)) {
			t.Errorf("%q has the key %q, %v", text, key, err)
		}
		if err != nil {
			return
		}
		var object map[string]any
		if json.Unmarshal(text, &object) != nil {
			return
		}
		if id, ok := object["id"].(string); ok && key != separators.Replace(id) || object["id"] == nil && key != "" {
			t.Errorf("%q has the key %q", text, key)
		}
	})
}
