package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
)

// urn begins the URI by which a problem document names an attempt.
const urn = "urn:dibs:claim:"

// selection is how an operator names keys.
type selection struct {
	key  string
	id   string
	glob string

	hasKey bool
}

func (s *selection) bind(fs *pflag.FlagSet) {
	fs.StringVar(&s.key, "key", "", "a `KEY` that is taken literally, also if it begins with - or urn:")
	fs.StringVar(&s.id, "id", "", "the `ID` of an attempt, or its urn:dibs:claim:ID")
}

// bindGlob adds the flag for those who can deal with many keys.
func (s *selection) bindGlob(fs *pflag.FlagSet) {
	fs.StringVar(&s.glob, "glob", "", "all keys that match the `PATTERN`: * is any text, ? any byte")
}

// read takes in the positional argument, if there is one, and refuses a
// selection that is none or several.
func (s *selection) read(fs *pflag.FlagSet, args []string) error {
	s.hasKey = fs.Changed("key")
	given := 0
	for _, name := range []string{"key", "id", "glob"} {
		if fs.Changed(name) {
			given++
		}
	}
	if given+len(args) != 1 {
		forms := "KEY or --id ID"
		if fs.Lookup("glob") != nil {
			forms = "KEY, --id ID or --glob PATTERN"
		}
		return usagef("name what is meant, once: %s", forms)
	}
	if len(args) == 1 {
		if id, ok := strings.CutPrefix(args[0], urn); ok && isID(id) {
			s.id = id
			return nil
		}
		s.key, s.hasKey = args[0], true
	}
	if fs.Changed("id") {
		s.id = strings.TrimPrefix(s.id, urn)
		if !isID(s.id) {
			return usagef("id: %s is not an ID: it has 16 characters, a to z and 2 to 7", quote(s.id))
		}
	}
	if fs.Changed("glob") && s.glob == "" {
		return usagef("glob: the pattern is empty; * matches all keys")
	}
	if s.hasKey {
		if err := (dibs.Key{Name: s.key}).Validate(); err != nil {
			return usagef("%s", strings.TrimPrefix(err.Error(), "dibs: "))
		}
	}
	return nil
}

// isID reports whether s has the form of an attempt's ID.
func isID(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return len(s) == 16
}

func (s *selection) String() string {
	switch {
	case s.hasKey:
		return "the key " + quote(s.key)
	case s.id != "":
		return "the attempt " + s.id
	}
	return "a key that matches " + quote(s.glob)
}

// find returns what the store knows of the selected keys, and an errAbsent with
// a hint when that is nothing.
func (p *program) find(ctx context.Context, in dibs.Inspector, s *selection, fs *pflag.FlagSet, data bool) ([]dibs.Entry, error) {
	q := dibs.Query{ID: s.id, Data: data, Places: data, Namespace: &p.namespace}
	if s.hasKey {
		q.Name = s.key
	}
	if s.id != "" && !fs.Changed("namespace") {
		q.Namespace = nil // an ID is like no other
	}
	var found []dibs.Entry
	for e, err := range in.List(ctx, q) {
		if err != nil {
			return nil, &dibs.StoreError{Op: "list", Err: err}
		}
		if s.glob == "" || glob(s.glob, e.Key.Name) {
			found = append(found, e)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	text := "there is no record or holder of " + s.String()
	if s.id == "" && p.namespace != "" {
		text += " in the namespace " + quote(p.namespace)
	}
	if s.hasKey {
		text += p.hint(ctx, in, s.key)
	}
	return nil, absentf("%s", text)
}

// maxHints is how many keys a hint names.
const maxHints = 5

// hint names the HTTP keys that end in what an operator took for the whole key:
// a client knows nothing of the scope that comes before it.
func (p *program) hint(ctx context.Context, in dibs.Inspector, key string) string {
	var names []string
	more := 0
	for e, err := range in.List(ctx, dibs.Query{Namespace: &p.namespace}) {
		if err != nil {
			break // a hint is not worth a failure
		}
		if part, ok := idempotency.KeyPart(e.Key.Name); ok && part == key {
			if len(names) < maxHints {
				names = append(names, "\n  "+quote(e.Key.Name))
			} else {
				more++
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	text := "; of clients' requests there is" + strings.Join(names, "")
	if more > 0 {
		text += fmt.Sprintf("\n  and %d more", more)
	}
	return text
}

// glob reports whether the text matches the pattern: * is any text, ? any byte.
func glob(pattern, text string) bool {
	// star is where to go on after the last *, which takes one byte more each
	// time that the rest does not match.
	p, t, star, taken := 0, 0, -1, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, taken = p+1, t
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == text[t]):
			p++
			t++
		case star >= 0:
			taken++
			p, t = star, taken
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
