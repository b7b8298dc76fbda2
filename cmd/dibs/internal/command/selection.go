package command

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/store"
)

// urn begins the URI that names an attempt in a problem document.
const urn = "urn:dibs:claim:"

// selection names keys: by key, by an attempt's ID, by a pattern, or by the key's digest.
type selection struct {
	key    string
	id     string
	glob   string
	digest string

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
	for _, name := range []string{"key", "id", "glob", "digest"} {
		if fs.Changed(name) {
			given++
		}
	}
	if given+len(args) != 1 {
		forms := "KEY or --id ID"
		switch {
		case fs.Lookup("digest") != nil:
			forms = "KEY, --id ID, --glob PATTERN or --digest DIGEST"
		case fs.Lookup("glob") != nil:
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
			return usagef("--id: %s is not an ID: %s", quote(s.id), idForm)
		}
	}
	if fs.Changed("glob") && s.glob == "" {
		return usagef("--glob: the pattern is empty; * matches all keys")
	}
	if fs.Changed("digest") && !isDigest(s.digest) {
		return usagef("--digest: %s is not a digest: it has 12 characters, 0 to 9 and a to f", quote(s.digest))
	}
	if s.hasKey {
		if err := (dibs.Key{Name: s.key}).Validate(); err != nil {
			return usagef("%s", strings.TrimPrefix(err.Error(), "dibs: "))
		}
	}
	return nil
}

// idForm says which texts isID accepts.
const idForm = "an ID has 16 characters, a to z and 2 to 7"

// isID reports whether s has the form of an attempt's ID.
func isID(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return len(s) == 16
}

// isDigest reports whether s has the form of a key's digest.
func isDigest(s string) bool {
	return len(s) == 12 && strings.Trim(s, "0123456789abcdef") == ""
}

func (s *selection) String() string {
	switch {
	case s.hasKey:
		return "the key " + quote(s.key)
	case s.id != "":
		return "the attempt " + s.id
	case s.digest != "":
		return "a key with the digest " + s.digest
	}
	return "a key that matches " + quote(s.glob)
}

// find returns the entries of the selected keys. If there are none, it returns errAbsent
// with a hint.
func (p *program) find(ctx context.Context, in store.Inspector, s *selection, fs *pflag.FlagSet, data bool) ([]store.Entry, error) {
	q := store.Query{ID: s.id, Data: data, Places: data, Namespace: &p.namespace, Match: matching(s.glob)}
	if s.hasKey {
		q.Name = s.key
	}
	if s.id != "" && !fs.Changed("namespace") {
		q.Namespace = nil // because IDs are unique
	}
	if s.digest != "" {
		p.scans(&q, s.digest, fs.Changed("namespace"))
	}
	if s.id != "" {
		q.Conditions = live // which are few, so an attempt that runs or is unknown is found at once
	}
	found, err := all(entries(ctx, in, q))
	if s.id != "" && len(found) == 0 && err == nil {
		q.Conditions = []store.Condition{store.ConditionDone}
		found, err = all(entries(ctx, in, q))
	}
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		return found, nil
	}
	text := "the store has no record, holder or waiter of " + s.String()
	if q.Namespace != nil && p.namespace != "" {
		text += " in the namespace " + quote(p.namespace)
	}
	if id, ok := strings.CutPrefix(s.key, urn); s.hasKey && ok && !isID(id) {
		text += ", and " + quote(id) + " is not the ID of an attempt: " + idForm
	}
	if s.hasKey && isID(s.key) {
		text += "; an ID is named by --id " + s.key
	}
	if s.hasKey && isDigest(s.key) {
		text += "; dibs show --digest " + s.key + " finds a key by the digest in a log"
	}
	if s.hasKey {
		text += p.hint(ctx, in, s.key)
	}
	return nil, absentf("%s", text)
}

// scans makes the query one for a digest, of keys of any namespace unless one is named, and says
// that this takes time.
func (p *program) scans(q *store.Query, digest string, named bool) {
	q.Match = func(k dibs.Key) bool { return k.Digest() == digest }
	of := "the namespace " + quote(p.namespace)
	if !named {
		q.Namespace, of = nil, "all namespaces"
	}
	fmt.Fprintf(p.env.Stderr, "dibs show: reads all keys of %s, because a digest cannot be looked up\n", of)
}

// entries lists keys. The limit is for each step, because a store may be large.
func entries(ctx context.Context, in store.Inspector, q store.Query) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		limit := time.AfterFunc(askLimit, func() { cancel(context.DeadlineExceeded) })
		defer limit.Stop()
		if match := q.Match; match != nil || q.ID != "" {
			q.Match = func(k dibs.Key) bool {
				limit.Reset(askLimit)
				return match == nil || match(k)
			}
		}
		for e, err := range in.List(ctx, q) {
			limit.Reset(askLimit)
			if err != nil {
				yield(e, &dibs.StoreError{Op: "list", Err: err})
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// all collects what is listed.
func all(listed iter.Seq2[store.Entry, error]) (found []store.Entry, err error) {
	for e, err := range listed {
		if err != nil {
			return nil, err
		}
		found = append(found, e)
	}
	return found, nil
}

// matching returns the function that selects keys by a pattern; nil if it is "".
func matching(pattern string) func(dibs.Key) bool {
	if pattern == "" {
		return nil
	}
	return func(k dibs.Key) bool { return glob(pattern, k.Name) }
}

// maxHints is how many keys a hint names.
const maxHints = 5

// hint names the HTTP keys that end in the key, because clients do not know the scope that
// comes before it. The key may have the quotes of the header's field.
func (p *program) hint(ctx context.Context, in store.Inspector, key string) string {
	var names []string
	more := 0
	ctx, cancel := context.WithTimeout(ctx, askLimit) // because a hint is not worth more
	defer cancel()
	sent := key
	if n := len(key); n > 2 && key[0] == '"' && key[n-1] == '"' {
		sent = key[1 : n-1]
	}
	match := func(k dibs.Key) bool {
		part, ok := idempotency.KeyPart(k.Name)
		return ok && (part == key || part == sent)
	}
	for e, err := range in.List(ctx, store.Query{Namespace: &p.namespace, Match: match}) {
		switch {
		case err != nil: // because a hint is not worth an error
		case len(names) < maxHints:
			names = append(names, "\n  "+quote(e.Key.Name))
		default:
			more++
		}
	}
	if len(names) == 0 {
		return p.elsewhere(ctx, in, key)
	}
	text := "; of clients' requests there is" + strings.Join(names, "")
	if more > 0 {
		text += fmt.Sprintf("\n  and %d more", more)
	}
	return text
}

// elsewhere names the other namespaces that have the key, because a program that has another
// namespace than its operator is mostly why a key seems to be missing.
func (p *program) elsewhere(ctx context.Context, in store.Inspector, key string) string {
	var names []string
	match := func(k dibs.Key) bool { return k.Name == key && k.Namespace != p.namespace }
	for e, err := range in.List(ctx, store.Query{Match: match}) {
		if err != nil { // because a hint is not worth an error
			break
		}
		name := "--namespace " + quote(e.Key.Namespace)
		if e.Key.Namespace == "" {
			name = "no --namespace"
		}
		names = append(names, name)
		if len(names) == maxHints {
			break
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; it is there with " + strings.Join(names, ", and with ")
}

// glob reports whether the text matches the pattern: * is any text, ? any byte.
func glob(pattern, text string) bool {
	// star is where to go on after the last *, which takes one more byte each
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
