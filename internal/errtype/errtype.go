// Package errtype makes errors that name their kind, for error.type of metrics.
package errtype

import (
	"context"
	"errors"
	"fmt"
)

// The kinds that several packages have. docs/operate/incidents.md says what each means, and the others.
const (
	Busy         = "busy"
	Closed       = "closed"
	Foreign      = "foreign"
	Full         = "full"
	Newer        = "newer_version"
	NotMigrated  = "not_migrated"
	ReadOnly     = "read_only"
	Crowded      = "too_many_connections"
	Unauthorized = "unauthorized"
	Unavailable  = "unavailable"
	Unreachable  = "unreachable"
	Unsupported  = "unsupported"
)

// typed is an error with its kind.
type typed struct {
	error
	kind string
}

// New returns an error of that kind. Its text is that of fmt.Errorf, which may wrap others.
// The kind is a few words in snake_case, from a set that is bounded.
func New(kind, format string, args ...any) error {
	return &typed{fmt.Errorf(format, args...), kind}
}

// ErrorType returns the kind. OpenTelemetry's packages look for a method of this name.
func (e *typed) ErrorType() string { return e.kind }

// Has reports whether an error names its kind.
func Has(err error) bool {
	_, ok := errors.AsType[interface {
		error
		ErrorType() string
	}](err)
	return ok
}

// Of returns the kind of an error that a call of a store returned, "canceled", "timeout", or
// "_OTHER". That the caller ended the call comes first, because what else failed is a
// consequence.
func Of(err error) string {
	var named interface{ ErrorType() string }
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, &named):
		return named.ErrorType()
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "_OTHER"
}

// Unwrap returns the error with its text.
func (e *typed) Unwrap() error { return e.error }
