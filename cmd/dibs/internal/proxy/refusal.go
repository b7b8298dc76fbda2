package proxy

import (
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/quantity"
)

// A refusal is what the guard refuses in the settings of a policy.
type refusal struct{ *idempotency.OptionError }

// refusals returns what the guard refuses. Of the methods of a route without a guard it refuses none,
// because they only say which requests the route is for.
func (p *Policy) refusals() iter.Seq[refusal] {
	o := p.middleware()
	if !p.Guard {
		o.Methods = nil
	}
	return func(yield func(refusal) bool) {
		for _, err := range faults(o.Validate()) {
			if e, ok := errors.AsType[*idempotency.OptionError](err); ok && !yield(refusal{e}) {
				return
			}
		}
	}
}

// validated returns the setting's value, which also refuses what the guard refuses, whatever the other
// settings are.
func (p *Policy) validated(row setting) value {
	v := row.value
	v.set = func(s string) error { return p.try(row, func() error { return row.value.set(s) }) }
	if row.value.setList != nil {
		v.setList = func(elements []string) error { return p.try(row, func() error { return row.value.setList(elements) }) }
	}
	return v
}

// try sets a setting, unless the guard refuses its value.
func (p *Policy) try(row setting, set func() error) error {
	before, initial := *p, defaults().Policy
	err := set()
	for e := range p.refusals() {
		if err == nil && e.is(row.name) {
			err = errors.New(e.reason())
		}
	}
	if usual := initial.text(row.name); err == nil && usual != "0" && row.value.String() == "0" {
		err = fmt.Errorf("it is 0; leave it out for the default, %s", usual) // which the guard takes for 0
	}
	if err != nil {
		*p = before
	}
	return err
}

// text returns the text of a setting.
func (p *Policy) text(name string) string {
	for _, row := range p.rows() {
		if row.name == name {
			return row.value.String()
		}
	}
	return ""
}

// is reports whether the value of the setting is wrong whatever the other settings are. That of methods
// is not, because it may be for a route without a guard.
func (e refusal) is(setting string) bool {
	if e.With != "" || setting == "methods" {
		return false
	}
	return settingOf(e.Field) == setting
}

// asSetting returns the error with the name of the setting.
func (e refusal) asSetting() *settingError {
	reason := e.reason()
	if e.Field == "Methods" {
		reason += "; remove it, or set guard to false"
	}
	return &settingError{settingOf(e.Field), reason}
}

// reason returns the reason in the words of the settings.
func (e refusal) reason() string {
	size, isSize := e.Value.(int64)
	switch {
	case e.Field == "MaxBodyMemory" && e.With != "":
		return fmt.Sprintf("it must be at least %s, which one request may need: max-stored, and up to 1MiB of body", quantity.SizeText(e.Least.(int64)))
	case e.Field == "Fingerprint" && e.With == e.Field:
		return "key cannot be used together with others"
	case isSize && e.Least != nil:
		return fmt.Sprintf("%s is too small; it must be at least %s", quantity.SizeText(size), quantity.SizeText(e.Least.(int64)))
	case isSize && e.Most != nil:
		return fmt.Sprintf("%s is too large; it may be at most %s", quantity.SizeText(size), quantity.SizeText(e.Most.(int64)))
	case e.With == "MCP":
		return strings.ReplaceAll(e.Reason, e.With, "for mcp")
	case e.With != "":
		return strings.ReplaceAll(e.Reason, e.With, settingOf(e.With))
	}
	return e.Reason
}

// renamed are the settings with another name than the field of the options that they set.
var renamed = map[string]string{"HandlerLimit": "handler-timeout", "Fingerprint.Fields": "fingerprint-fields", "WriteProblem": "errors", "MCP": presetName}

// settingOf returns the name of the setting for a field of the options.
func settingOf(field string) string {
	if name, ok := renamed[field]; ok {
		return name
	}
	for _, row := range new(Policy).rows() {
		if plainName(row.name) == plainName(field) {
			return row.name
		}
	}
	return field
}
