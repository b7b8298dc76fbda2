package proxy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/dibs-go/dibs/cmd/dibs/internal/missing"
	"github.com/dibs-go/dibs/internal/quantity"
	"github.com/dibs-go/dibs/internal/suggest"
)

// Bounds of a configuration file. A reload must not end the proxy or keep it from its signals,
// and the parser's time grows with the square of the fields, its memory with that of the nesting.
const (
	maxFile    = 256 << 10 // bytes
	maxNesting = 16        // collections within one another
	maxFaults  = 100       // that are reported
)

// nestedMapping is what the parser says of a value that ends with a colon.
const nestedMapping = "mapping value is not allowed in this context"

// file is a configuration file. The zero file has no settings.
type file struct {
	name   string
	fields []*ast.MappingValueNode // at the top, without the routes
	routes []ast.Node
	faults []error
}

// open reads the text of a file. It sets nothing.
func open(name string) *file {
	f := &file{name: name}
	text, err := read(name)
	if err != nil {
		f.faults = append(f.faults, fmt.Errorf("--config: %w", missing.File(err, name, "printf 'upstream: http://127.0.0.1:3000\\nstore: sqlite:/var/lib/dibs/dibs.db\\n' >FILE")))
		return f
	}
	tokens := lexer.Tokenize(text)
	if t := tooDeep(tokens); t != nil {
		f.wrong(t.Position.Line, t.Position.Column, fmt.Sprintf("more than %d mappings and sequences are nested", maxNesting))
		return f
	}
	tree, err := parser.Parse(tokens, 0)
	if syntax, ok := errors.AsType[yaml.Error](err); ok && syntax.GetToken() != nil {
		at := syntax.GetToken().Position
		message := syntax.GetMessage()
		switch {
		case message == nestedMapping:
			message += `: a value with a colon may need quotes, as in store: "memory:"`
		case strings.Contains(message, "tab character") || strings.Contains(message, "\t"):
			message = "there is a tab, and YAML is indented by spaces: replace the tab by spaces"
		}
		f.wrong(at.Line, at.Column, message)
		return f
	}
	switch {
	case err != nil:
		f.faults = append(f.faults, fmt.Errorf("%s: %w", name, err))
	case len(tree.Docs) == 0 || tree.Docs[0].Body == nil:
	case len(tree.Docs) > 1 && tree.Docs[1].Body != nil:
		f.wrongAt(tree.Docs[1].Body, "it has several documents; write one")
	default:
		f.split(tree.Docs[0].Body)
	}
	return f
}

// read returns the text of a file of at most maxFile bytes.
func read(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if len(text) > maxFile {
		return "", fmt.Errorf("%s is longer than %s", name, quantity.SizeText(maxFile))
	}
	return strings.TrimPrefix(string(text), "\ufeff"), err // some editors write a byte order mark
}

// tooDeep returns the token that exceeds maxNesting; nil if none does. It does not count what is
// nested by indentation, because maxFile bounds that. It counts all documents, tags and empty elements,
// because the parser's memory grows with them as with nesting. A file has no use for more than a few.
func tooDeep(tokens token.Tokens) *token.Token {
	brackets, dashes, others := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			brackets++
		case token.SequenceEndType, token.MappingEndType:
			brackets--
		case token.DocumentHeaderType, token.DocumentEndType, token.TagType:
			others++
		case token.SequenceEntryType:
			if isEmpty(t) {
				others++
			}
		}
		if t.Type != token.SequenceEntryType {
			dashes = 0
		} else if dashes++; t.Prev != nil && t.Prev.Position.Line != t.Position.Line {
			dashes = 1
		}
		if brackets+dashes+others > maxNesting {
			return t
		}
	}
	return nil
}

// isEmpty reports whether the element that a dash begins has nothing in it.
func isEmpty(dash *token.Token) bool {
	next := dash.Next
	for next != nil && next.Type == token.CommentType {
		next = next.Next
	}
	return next != nil && next.Position.Line > dash.Position.Line && next.Position.Column <= dash.Position.Column
}

// split sets the fields and the routes from the root of the tree.
func (f *file) split(root ast.Node) {
	f.fields = slices.DeleteFunc(f.fieldsOf(root), func(v *ast.MappingValueNode) bool {
		if name(v) != "routes" {
			return false
		}
		if sequence, ok := v.Value.(*ast.SequenceNode); ok {
			f.routes = sequence.Values
		} else {
			f.wrongAt(v.Key, "routes must be a sequence")
		}
		return true
	})
}

// fieldsOf returns the fields of a mapping.
func (f *file) fieldsOf(node ast.Node) []*ast.MappingValueNode {
	mapping, ok := node.(ast.MapNode)
	if !ok {
		f.wrongAt(node, "it must be a mapping: a line for each setting, NAME: VALUE")
		return nil
	}
	var all []*ast.MappingValueNode
	for i := mapping.MapRange(); i.Next(); {
		all = append(all, i.KeyValue())
	}
	return all
}

// isNamed returns a function that reports whether a field has the name.
func isNamed(wanted string) func(*ast.MappingValueNode) bool {
	return func(v *ast.MappingValueNode) bool { return name(v) == wanted }
}

// preset returns the preset among the fields; "" if there is none.
func (f *file) preset(fields []*ast.MappingValueNode) string {
	if i := slices.IndexFunc(fields, isNamed("for")); i >= 0 {
		text, _ := scalar(fields[i].Value) // set reports the error
		return text
	}
	return ""
}

// place returns the place of a node in the file.
func place(node ast.Node) string { return fmt.Sprintf("line %d", node.GetToken().Position.Line) }

// name returns a field's name.
func name(f *ast.MappingValueNode) string { return f.Key.GetToken().Value }

// set sets the fields, until there are maxFaults. It returns the names of those that are wrong.
func (f *file) set(fields []*ast.MappingValueNode, all []setting) map[string]bool {
	wrong := map[string]bool{}
	for _, field := range fields {
		if len(f.faults) >= maxFaults {
			break
		}
		i := slices.IndexFunc(all, func(s setting) bool { return s.name == name(field) })
		if i < 0 {
			wrong[name(field)] = true
			f.wrongAt(field.Key, fmt.Sprintf("unknown field %q%s", name(field), suggestion(name(field), all)))
		} else if err := setNode(field.Value, all[i]); err != nil {
			wrong[name(field)] = true
			f.wrongAt(field.Value, name(field)+": "+err.Error())
		}
	}
	return wrong
}

// suggestion is the end of a message about an unknown name: the setting with the most similar
// name; "" if none is similar. handler_limit and handlerLimit are the same name as handler-limit.
func suggestion(unknown string, all []setting) string {
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.name
	}
	plain := func(s string) string { return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)) }
	if name := suggest.Similar(unknown, names, plain); name != "" {
		return fmt.Sprintf("; did you mean %q?", name)
	}
	return ""
}

// report reports a fault at the field that it names. If there is no such field, it is at the route. If
// route is nil, where is the flag or the variable that the setting comes from instead; "" for neither.
func (f *file) report(fields []*ast.MappingValueNode, route ast.Node, e *fault, where string) {
	i := slices.IndexFunc(fields, isNamed(e.setting))
	switch {
	case where != "" && len(f.faults) < maxFaults:
		f.faults = append(f.faults, fmt.Errorf("%s: %s", where, e.message))
	case i >= 0:
		f.wrongAt(fields[i].Key, e.Error())
	case route == nil && len(f.faults) < maxFaults:
		f.faults = append(f.faults, e)
	case route == nil:
	case len(fields) > 0:
		f.wrongAt(fields[0].Key, e.Error())
	default:
		f.wrongAt(route, e.Error())
	}
}

// wrongAt reports what is wrong with a node.
func (f *file) wrongAt(node ast.Node, message string) {
	at := node.GetToken().Position
	f.wrong(at.Line, at.Column, message)
}

// wrong reports what is wrong at a place in the file, unless maxFaults are reported.
func (f *file) wrong(line, column int, message string) {
	if len(f.faults) < maxFaults {
		f.faults = append(f.faults, fmt.Errorf("%s:%d:%d: %s", f.name, line, column, message))
	}
}

// setNode sets a value from a scalar, or a list from a sequence.
func setNode(node ast.Node, s setting) error {
	sequence, ok := node.(*ast.SequenceNode)
	if !ok {
		text, err := scalar(node)
		if err != nil {
			return err
		}
		return s.set(text)
	}
	elements := make([]string, len(sequence.Values))
	for i, element := range sequence.Values {
		var err error
		if elements[i], err = scalar(element); err != nil {
			return err
		}
	}
	return s.setList(elements)
}

// scalar returns the text of a node that is not a collection.
func scalar(node ast.Node) (string, error) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.NullNode:
		return "", errors.New("its value is missing")
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		return "", errors.New("anchors, aliases and tags of YAML are not read: write the value itself")
	case ast.ScalarNode:
		return n.GetToken().Value, nil
	}
	return "", errors.New("it must be text or a number")
}
