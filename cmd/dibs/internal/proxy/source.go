package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/internal/suggest"
)

// Source is where the settings of a proxy come from.
type Source struct {
	// File is a YAML file; "" for none.
	File string
	// Flags are the flags of Bind.
	Flags *pflag.FlagSet
	// Getenv returns the value of an environment variable, or "".
	Getenv func(string) string
	// Environ are all variables, as os.Environ returns them. A variable that begins as the proxy's do and
	// is none of them is a fault.
	Environ []string
	// CheckStore returns an error for text that is not a URL of a store.
	CheckStore func(string) error

	level slog.LevelVar // of the log
}

// Load returns the configuration: the defaults, then what the file says, then the environment
// variables, then the flags that were given. The error has a line for each fault.
// It names the setting, the variable or, for the file, the line and the column.
func (s *Source) Load() (*Config, error) {
	c := defaults()
	c.source = s
	f := new(file)
	if s.File != "" {
		f = open(s.File)
	}
	if len(f.faults) > 0 {
		return nil, errors.Join(f.faults...)
	}
	all := settingsOf(&c)
	given := s.given(all)
	// A preset is overridden by every other setting, wherever it is set.
	preset := f.preset(f.fields)
	for _, g := range given {
		if g.name == "for" {
			preset = g.text
		}
	}
	c.use(preset)
	wrong := f.set(f.fields, all)
	var faults []error
	where := map[string]string{}
	for _, g := range given {
		where[g.name] = g.where
		if err := g.set(g.text); err != nil {
			wrong[g.name] = true
			faults = append(faults, fmt.Errorf("%s: %w", g.where, err))
		}
	}
	faults = append(faults, s.misspelt(all)...)
	known := map[fault]bool{}
	for _, e := range c.check(len(f.routes) > 0) {
		if !wrong[e.setting] {
			f.report(f.fields, nil, e, where[e.setting])
			known[*e] = true
		}
	}
	for _, node := range f.routes {
		r := Route{Policy: c.Policy, place: place(node)}
		fields := f.fieldsOf(node)
		if preset := f.preset(fields); preset != r.For {
			r.use(preset)
		}
		ours := f.set(fields, settingsOf(&r))
		if slices.ContainsFunc(fields, isNamed("methods")) {
			r.Only = r.Methods
		}
		for _, e := range r.check(c.Routes, c.Listen) {
			if !wrong[e.setting] && !ours[e.setting] && !known[*e] {
				f.report(fields, node, e, "")
			}
		}
		if len(ours) == 0 {
			c.Routes = append(c.Routes, r)
		}
	}
	return &c, errors.Join(append(faults, f.faults...)...)
}

// given is a setting with a text from outside of the file.
type given struct {
	setting
	text, where string
}

// given returns what the environment says, and then what the flags say.
func (s *Source) given(all []setting) (texts []given) {
	for _, row := range all {
		if text := s.Getenv(row.variable()); text != "" {
			where := row.variable()
			if file := where + "_FILE"; row.name == "store" && s.Getenv(file) != "" {
				where = file
			}
			texts = append(texts, given{row, text, where})
		}
	}
	for _, row := range all {
		if flag := s.Flags.Lookup(row.name); flag != nil && flag.Changed {
			texts = append(texts, given{row, flag.Value.String(), "--" + row.name})
		}
	}
	return texts
}

// services matches what Kubernetes sets for a service that is named as the proxy.
var services = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)=|_PORT=\w+://`)

// misspelt returns a fault for each variable that begins as the proxy's do and sets nothing.
func (s *Source) misspelt(all []setting) (faults []error) {
	names := make([]string, len(all))
	for i, row := range all {
		names[i] = row.variable()
	}
	for _, entry := range s.Environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "DIBS_PROXY_") || value == "" || slices.Contains(names, name) || services.MatchString(entry) {
			continue
		}
		cure := "dibs proxy --help lists the settings"
		if meant := suggest.Similar(name, names, nil); meant != "" {
			cure = "did you mean " + meant + "?"
		}
		faults = append(faults, fmt.Errorf("%s: there is no such setting; %s", name, cure))
	}
	return faults
}

// reload returns the configuration of today. A file that ends when it was read once, such as a
// pipe, is an error.
func (s *Source) reload() (*Config, error) {
	if info, err := os.Stat(s.File); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("--config: %s is not a regular file, so it cannot be read again: restart the proxy", s.File)
	}
	return s.Load()
}
