package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// routeNodes are the routes of a file before they are read. They are read last, because
// they inherit what the flags say.
type routeNodes []ast.Node

// read sets what a file says, and returns its routes.
func (c *Config) read(text []byte) (routeNodes, error) {
	file, err := parser.ParseBytes(text, 0)
	switch {
	case err != nil:
		return nil, plainError(err)
	case len(file.Docs) > 1 && file.Docs[1].Body != nil:
		return nil, errors.New("it has several documents; write one")
	case len(file.Docs) == 0 || file.Docs[0].Body == nil:
		return nil, nil
	}
	top, err := fields(file.Docs[0].Body)
	if err != nil {
		return nil, err
	}
	var routes routeNodes
	top = slices.DeleteFunc(top, func(v *ast.MappingValueNode) bool {
		if name(v) != "routes" {
			return false
		}
		sequence, ok := v.Value.(*ast.SequenceNode)
		if !ok {
			err = wrong(v.Key, "routes must be a sequence")
			return true
		}
		routes = sequence.Values
		return true
	})
	if err != nil {
		return nil, err
	}
	return routes, set(top, c.settings())
}

// route reads a route.
func (c *Config) route(node ast.Node) (*Route, error) {
	r := &Route{Policy: c.Policy}
	all, err := fields(node)
	if err != nil {
		return nil, err
	}
	if err := set(all, r.settings()); err != nil {
		return nil, err
	}
	if err := r.Policy.check(); err != nil {
		return nil, wrong(node, err.Error())
	}
	if r.Upstream == "" {
		return nil, wrong(node, "upstream: it is missing, here and at the top")
	}
	return r, nil
}

// fields returns the fields of a mapping, the preset first, because the others override it.
func fields(node ast.Node) ([]*ast.MappingValueNode, error) {
	mapping, ok := node.(ast.MapNode)
	if !ok {
		return nil, wrong(node, "it must be a mapping: a line for each setting, NAME: VALUE")
	}
	var all []*ast.MappingValueNode
	for i := mapping.MapRange(); i.Next(); {
		v := i.KeyValue()
		if name(v) == presetName {
			all = slices.Insert(all, 0, v)
		} else {
			all = append(all, v)
		}
	}
	return all, nil
}

// name returns a field's name.
func name(f *ast.MappingValueNode) string { return f.Key.GetToken().Value }

// set sets the fields.
func set(fields []*ast.MappingValueNode, all []setting) error {
	for _, f := range fields {
		i := slices.IndexFunc(all, func(s setting) bool { return s.name == name(f) })
		if i < 0 {
			return wrong(f.Key, fmt.Sprintf("unknown field %q", name(f)))
		}
		if err := setNode(f.Value, all[i].value); err != nil {
			return wrong(f.Value, all[i].name+": "+err.Error())
		}
	}
	return nil
}

// setNode sets a value from a scalar, or a list from a sequence.
func setNode(node ast.Node, v value) error {
	sequence, ok := node.(*ast.SequenceNode)
	switch {
	case !ok:
		text, err := scalar(node)
		if err != nil {
			return err
		}
		return v.Set(text)
	case v.setList == nil:
		return errors.New("it must be one value, not a sequence")
	}
	elements := make([]string, len(sequence.Values))
	for i, element := range sequence.Values {
		var err error
		if elements[i], err = scalar(element); err != nil {
			return err
		}
	}
	return v.setList(elements)
}

// scalar returns the text of a node that is no collection.
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

// wrong is an error with the line of the node and its text.
func wrong(node ast.Node, message string) error {
	return plainError(&yaml.SyntaxError{Message: message, Token: node.GetToken()})
}

// plainError is an error of the YAML library without colours.
func plainError(err error) error {
	return errors.New(strings.TrimSpace(yaml.FormatError(err, false, true)))
}
