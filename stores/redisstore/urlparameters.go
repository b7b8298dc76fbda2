package redisstore

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// parameters are the names after '?' and their fields.
var parameters = []struct {
	name   string
	fits   func(*Address) bool
	secret bool
	to     func(*Address) any
}{
	{"prefix", always, false, func(a *Address) any { return &a.prefix }},
	{"replicas", always, false, func(a *Address) any { return &a.replicas }},
	{"replica-wait", always, false, func(a *Address) any { return &a.replicaWait }},
	{"db", onSocket, false, func(a *Address) any { return &a.db }},
	{"ca", overTLS, false, func(a *Address) any { return &a.ca }},
	{"cert", overTLS, false, func(a *Address) any { return &a.cert }},
	{"key", overTLS, false, func(a *Address) any { return &a.key }},
	{"server-name", overTLS, false, func(a *Address) any { return &a.serverName }},
	{"skip-verify", overTLS, false, func(a *Address) any { return &a.skipVerify }},
	{"sentinel-user", throughSentinels, true, func(a *Address) any { return &a.sentinelUser }},
	{"sentinel-password", throughSentinels, true, func(a *Address) any { return &a.sentinelPassword }},
}

func set(to any, v string) (err error) {
	switch to := to.(type) {
	case *string:
		*to = v
	case *int:
		*to, err = number(v)
	case *bool:
		if *to, err = strconv.ParseBool(v); err != nil {
			return errors.New("it must be true or false")
		}
	case *time.Duration:
		if *to, err = time.ParseDuration(v); err != nil || *to < time.Millisecond {
			return errors.New("it must be a duration of at least 1ms, such as 500ms")
		}
	}
	return err
}

func always(*Address) bool             { return true }
func onSocket(a *Address) bool         { return a.kind == socket }
func overTLS(a *Address) bool          { return a.tls }
func throughSentinels(a *Address) bool { return a.kind == sentinels }

func number(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, errors.New("it must be a number, 0 or more")
	}
	return int(n), nil
}

func (a *Address) setParameters(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the part after '?' must be NAME=VALUE, joined by '&'")
	}
	var known []string
	for _, p := range parameters {
		if !p.fits(a) {
			continue
		}
		known = append(known, p.name)
		given := values[p.name]
		delete(values, p.name)
		if len(given) == 0 {
			continue
		}
		if len(given) > 1 || given[0] == "" {
			return fmt.Errorf("%s must appear once, with a value", p.name)
		}
		if err := set(p.to(a), given[0]); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if !p.secret {
			a.shown.Set(p.name, given[0])
		}
	}
	for name := range values {
		return fmt.Errorf("%q is not a parameter of %s://; the parameters are %s", name, a.scheme, strings.Join(known, ", "))
	}
	if a.prefix != "" && !validPrefix(a.prefix) {
		return errors.New("prefix: it must be 1 to 64 letters, digits, '.', '_', '-' and ':'")
	}
	if (a.cert == "") != (a.key == "") {
		return errors.New("cert and key belong together")
	}
	return nil
}

// amend adds the URL's parameters to the options.
func (a *Address) amend(o *Options) (*Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	return &r, cmp.Or(
		amend(&r.Prefix, a.prefix, "prefix", "Options.Prefix"),
		amend(&r.Replicas, a.replicas, "replicas", "Options.Replicas"),
		amend(&r.ReplicaWait, a.replicaWait, "replica-wait", "Options.ReplicaWait"),
	)
}

// amend sets an option from the URL. An option with two values is an error.
func amend[T comparable](option *T, value T, name, field string) error {
	var zero T
	switch {
	case value == zero || value == *option:
		return nil
	case *option != zero:
		return fmt.Errorf("%w: its %s is %v, and %s is %v", ErrURL, name, value, field, *option)
	}
	*option = value
	return nil
}
