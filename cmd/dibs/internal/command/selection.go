package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
)

// urn begins the URI that names an attempt in a problem document.
const urn = "urn:dibs:claim:"

// selection names keys: by key, by an attempt's ID, or by a pattern.
type selection struct {
	key  string
	id   string
	glob string

	hasKey bool
}

func (s *selection) bind(fs *pflag.FlagSet) {
	fs.StringVar(&s.key, "key", "", "a `KEY`, taken literally; it can begin with - or urn:")
	fs.StringVar(&s.id, "id", "", "the `ID` of an attempt, or its urn:dibs:claim:ID")
}

// bindGlob adds the flag of commands that accept several keys.
func (s *selection) bindGlob(fs *pflag.FlagSet) {
	fs.StringVar(&s.glob, "glob", "", "all keys that match the `PATTERN`: * is any text, ? any byte")
}

// read reads the argument, if there is one. It refuses no selection, and several.
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
		return usagef("name the key in one way: %s", forms)
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

// find returns the entries of the selected keys. If there are none, it returns errAbsent
// with a hint.
func (p *program) find(ctx context.Context, in dibs.Inspector, s *selection, fs *pflag.FlagSet, data bool) ([]dibs.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	q := dibs.Query{ID: s.id, Data: data, Places: data, Namespace: &p.namespace}
	if s.hasKey {
		q.Name = s.key
	}
	if s.id != "" && !fs.Changed("namespace") {
		q.Namespace = nil // because IDs are unique
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
	text := "the store has no record, holder or waiter of " + s.String()
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

// hint names the HTTP keys that end in the key, because clients do not know the scope that
// comes before it.
func (p *program) hint(ctx context.Context, in dibs.Inspector, key string) string {
	var names []string
	more := 0
	for e, err := range in.List(ctx, dibs.Query{Namespace: &p.namespace}) {
		if err != nil {
			break // because a hint is not worth an error
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
