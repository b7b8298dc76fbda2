package idempotency

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/content"
)

// An OptionError says which field of Options is wrong, and why. A program that has other names for the
// fields, such as flags, can say the same with its own names.
type OptionError struct {
	// Field is the name of the field. That of a field of Fingerprint begins with "Fingerprint.", and
	// that of a field of MCP with "MCP.".
	Field string
	// With is the name of the field that Field contradicts. It is Field itself if the elements of a list
	// contradict each other, and "" if the value is wrong whatever the others are.
	With string
	// Value is the value if it is too small or too large. Then Least or Most is the limit, of the type of
	// the field. All three are nil if there is another reason.
	Value, Least, Most any
	// Reason says what is wrong, in words that follow a colon.
	Reason string
}

// Error returns the field and the reason.
func (e *OptionError) Error() string {
	return "idempotency: Options." + e.Field + ": " + e.Reason
}

// Validate returns an *OptionError for each field that is wrong, joined as by errors.Join; nil if New
// would accept the options. A nil o is right.
func (o *Options) Validate() error {
	filled := o.withDefaults(dibs.Options{})
	return errors.Join(filled.faults()...)
}

// faults returns an *OptionError for each field that is wrong. Each field has a value.
func (o *Options) faults() (all []error) {
	wrong := func(field, with, reason string, args ...any) {
		all = append(all, &OptionError{Field: field, With: with, Reason: fmt.Sprintf(reason, args...)})
	}
	for _, m := range o.Methods {
		switch {
		case !content.IsToken(m):
			wrong("Methods", "", "%q is not a method", m)
		case m == http.MethodConnect || slices.Contains(safeMethods, m):
			wrong("Methods", "", "%s cannot be guarded", m)
		case strings.ToUpper(m) != m:
			wrong("Methods", "", "%q is not in capitals; methods are case-sensitive", m)
		}
	}
	for _, status := range o.Keep {
		if status != keepDefault && !isStatusOrClass(status) {
			wrong("Keep", "", "%q is neither a status from 200 to 599, such as 404, nor a class such as 2xx", status)
		}
	}
	for _, part := range o.Scope {
		kind, name, named := strings.Cut(part.name, ":")
		switch {
		case part.of == nil && part.name != ScopeNone.name:
			wrong("Scope", "", "it has an empty part")
		case (kind == "header" || kind == "cookie") && named && !content.IsToken(name):
			// No request would have this part, so all would share keys.
			wrong("Scope", "", "%q is not the name of a %s", name, kind)
		case kind == "header" && named && ScopeFieldFault(name) != "":
			wrong("Scope", "", "%q %s", name, ScopeFieldFault(name))
		}
	}
	if len(o.Scope) > 1 && slices.ContainsFunc(o.Scope, func(p ScopePart) bool { return p.of == nil && p.name == ScopeNone.name }) {
		wrong("Scope", "Scope", "none cannot be used together with other parts")
	}
	for _, name := range o.NotStored {
		if !content.IsToken(name) {
			wrong("NotStored", "", "%q is not the name of a header", name)
		}
	}
	f := &o.Fingerprint
	compares := f.SortQuery || f.CanonicalJSON || f.Multipart || len(f.Fields) > 0
	if slices.Contains(f.Fields, "") {
		wrong("Fingerprint.Fields", "", "a field has no name")
	}
	if f.Func != nil && (compares || f.KeyAlone) || f.KeyAlone && compares {
		wrong("Fingerprint", "Fingerprint", "Func and KeyAlone cannot be used together with other fields")
	}
	if o.MCP != nil {
		for _, tool := range slices.Sorted(maps.Keys(o.MCP.ToolWindows)) {
			if window := o.MCP.ToolWindows[tool]; tool == "" || window < time.Second || window > MaxRetention {
				wrong("MCP.ToolWindows", "", "%q: %v is not a time from 1s to %v after a call of a tool", tool, window, MaxRetention)
			}
		}
		switch {
		case o.Key == nil:
			wrong("MCP", "Key", "it needs Key, such as that of MCPOptions")
		case len(o.Methods) > 0 && !slices.Contains(o.Methods, http.MethodPost):
			wrong("Methods", "MCP", "without POST no message is guarded")
		case compares || f.Func != nil || f.KeyAlone:
			wrong("Fingerprint", "MCP", "it has no effect together with MCP, which compares params without _meta")
		}
	}
	if o.KeyRing != nil && len(o.KeyRing.ciphers) == 0 {
		wrong("KeyRing", "", "it has no key; make it with NewKeyRing or ParseKeyRing")
	}
	switch {
	case o.Transactor == nil && o.Commits != nil:
		wrong("Commits", "Transactor", "it has no effect without Transactor")
	case o.Transactor != nil && o.OnCrash == AtMostOnce:
		wrong("OnCrash", "Transactor", "AtMostOnce has no effect together with Transactor, because a run that crashed has done nothing")
	case o.Transactor != nil && o.OnStoreFailure == FailOpen:
		wrong("OnStoreFailure", "Transactor", "FailOpen would run handlers without the transaction of Transactor")
	}
	switch {
	case o.KeyPer != KeyPerPrincipal && o.KeyPer != KeyPerPath && o.KeyPer != KeyPerRequest:
		wrong("KeyPer", "", "%q is none of %s, %s, %s", o.KeyPer, KeyPerPrincipal, KeyPerPath, KeyPerRequest)
	case o.KeyPer == KeyPerPrincipal && o.Key != nil:
		wrong("KeyPer", "Key", "%s cannot be used together with Key, because a sender may send one event to several paths", KeyPerPrincipal)
	case o.KeyPer == KeyPerRequest && f.KeyAlone:
		wrong("KeyPer", "Fingerprint.KeyAlone", "%s has no effect together with Fingerprint.KeyAlone, which leaves nothing to tell requests apart", KeyPerRequest)
	}
	if o.OnOversize != Tombstone && o.OnOversize != Rerun {
		wrong("OnOversize", "", "%q is neither %s nor %s", o.OnOversize, Tombstone, Rerun)
	}
	if o.OnCrash != TakeOver && o.OnCrash != AtMostOnce {
		wrong("OnCrash", "", "%q is neither %s nor %s", o.OnCrash, TakeOver, AtMostOnce)
	}
	if o.OnStoreFailure != FailClosed && o.OnStoreFailure != FailOpen {
		wrong("OnStoreFailure", "", "%q is neither %s nor %s", o.OnStoreFailure, FailClosed, FailOpen)
	}
	return slices.Concat(all, o.limits(), o.contradictions())
}

// limits returns an error for each number that is too small or too large.
func (o *Options) limits() []error {
	return slices.DeleteFunc([]error{
		between("MaxBody", o.MaxBody, 1, math.MaxInt64-1),
		between("BodyTimeout", o.BodyTimeout, time.Millisecond, math.MaxInt64),
		between("MaxConcurrent", o.MaxConcurrent, 0, math.MaxInt),
		between("MaxBodyMemory", o.MaxBodyMemory, 0, math.MaxInt64),
		between("Lease", o.Lease, minLease, math.MaxInt64),
		between("Retention", o.Retention, time.Second, MaxRetention),
		between("Wait", o.Wait, 0, MaxRetention),
		between("ConflictStatus", o.ConflictStatus, 400, 499),
		between("MismatchStatus", o.MismatchStatus, 400, 499),
		between("MaxStored", o.MaxStored, 1, MaxStored),
		between("StoreTimeout", o.StoreTimeout, time.Millisecond, math.MaxInt64),
		between("HandlerLimit", o.HandlerLimit, time.Millisecond, math.MaxInt64),
	}, func(err error) bool { return err == nil })
}

// between returns an error if the field's value is too small or too large.
func between[T int | int64 | time.Duration](field string, value, least, most T) error {
	little, much := "small", "large"
	if _, ok := any(value).(time.Duration); ok {
		little, much = "short", "long"
	}
	e := &OptionError{Field: field, Value: value}
	switch {
	case value < least:
		e.Least, e.Reason = least, fmt.Sprintf("%v is too %s; it must be at least %v", value, little, least)
	case value > most:
		e.Most, e.Reason = most, fmt.Sprintf("%v is too %s; it may be at most %v", value, much, most)
	default:
		return nil
	}
	return e
}

// contradictions returns an error for each number that another one makes useless.
func (o *Options) contradictions() (all []error) {
	if least := min(o.MaxBody, o.maxMemory) + o.MaxStored; o.MaxBodyMemory > 0 && o.MaxBodyMemory < least {
		all = append(all, &OptionError{
			Field: "MaxBodyMemory", With: "MaxStored", Value: o.MaxBodyMemory, Least: least,
			Reason: fmt.Sprintf("%d is too small; it must be at least %d, which one request may need: MaxStored, and what is in memory of its body", o.MaxBodyMemory, least),
		})
	}
	return all
}

// isStatusOrClass reports whether s is an element of Options.Keep.
func isStatusOrClass(s string) bool {
	return len(s) == 3 && '2' <= s[0] && s[0] <= '5' && (s[1:] == "xx" || strings.Trim(s, "0123456789") == "")
}
