package proxy

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// List is a comma-separated list. In a configuration file it may be a sequence
// as well.
type List []string

// String returns the list as it is written.
func (l *List) String() string { return strings.Join(*l, ",") }

// Type returns the word that help texts show.
func (l *List) Type() string { return "list" }

// Set replaces the list. It refuses empty elements.
func (l *List) Set(s string) error {
	*l = nil
	if s == "" {
		return nil
	}
	for element := range strings.SplitSeq(s, ",") {
		if element = strings.TrimSpace(element); element == "" {
			return fmt.Errorf("%q has an empty element", s)
		}
		*l = append(*l, element)
	}
	return nil
}

// UnmarshalYAML reads a sequence or a comma-separated string.
func (l *List) UnmarshalYAML(node ast.Node) error {
	if _, ok := node.(*ast.SequenceNode); !ok {
		return setFrom(node, l.Set)
	}
	var sequence []string
	if err := yaml.NodeToValue(node, &sequence, yaml.Strict()); err != nil {
		return err
	}
	*l = sequence
	return nil
}

// Duration is a time.Duration, written as Go writes it: 30s, 1h30m.
type Duration time.Duration

// String returns the duration as it is written.
func (d *Duration) String() string { return time.Duration(*d).String() }

// Type returns the word that help texts show.
func (d *Duration) Type() string { return "duration" }

// Set reads a duration.
func (d *Duration) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration: write 30s, 5m or 24h", s)
	}
	*d = Duration(v)
	return nil
}

// UnmarshalYAML reads a duration.
func (d *Duration) UnmarshalYAML(node ast.Node) error { return setFrom(node, d.Set) }

// Switch is on or off.
type Switch bool

// String returns on or off.
func (s *Switch) String() string {
	if *s {
		return "on"
	}
	return "off"
}

// Type returns the word that help texts show.
func (s *Switch) Type() string { return "on|off" }

// Set reads on, off and what else a bool may be.
func (s *Switch) Set(text string) error {
	switch text {
	case "on", "true":
		*s = true
	case "off", "false":
		*s = false
	default:
		return fmt.Errorf("%q is neither on nor off", text)
	}
	return nil
}

// UnmarshalYAML reads on or off.
func (s *Switch) UnmarshalYAML(node ast.Node) error { return setFrom(node, s.Set) }

// Size is a number of bytes. It is written as such or with a unit: KiB, MiB.
type Size int64

// String returns the size with the largest unit that divides it.
func (s *Size) String() string {
	switch n := int64(*s); {
	case n != 0 && n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + "MiB"
	case n != 0 && n%(1<<10) == 0:
		return strconv.FormatInt(n>>10, 10) + "KiB"
	default:
		return strconv.FormatInt(n, 10)
	}
}

// Type returns the word that help texts show.
func (s *Size) Type() string { return "size" }

// Set reads a size. It refuses other units and negative numbers.
func (s *Size) Set(text string) error {
	digits, shift := text, 0
	if rest, ok := strings.CutSuffix(text, "KiB"); ok {
		digits, shift = rest, 10
	} else if rest, ok := strings.CutSuffix(text, "MiB"); ok {
		digits, shift = rest, 20
	}
	n, err := strconv.ParseUint(strings.TrimRight(digits, " "), 10, 63-shift)
	if err != nil {
		return fmt.Errorf("%q is not a size: write bytes, or a number with KiB or MiB", text)
	}
	*s = Size(n << shift)
	return nil
}

// UnmarshalYAML reads a number of bytes or a size with its unit.
func (s *Size) UnmarshalYAML(node ast.Node) error { return setFrom(node, s.Set) }

// setFrom sets a value from a scalar as a flag would be set. The error knows
// the line.
func setFrom(node ast.Node, set func(string) error) error {
	var s string
	if err := yaml.NodeToValue(node, &s); err != nil {
		return err
	}
	if err := set(s); err != nil {
		return &yaml.SyntaxError{Message: err.Error(), Token: node.GetToken()}
	}
	return nil
}
