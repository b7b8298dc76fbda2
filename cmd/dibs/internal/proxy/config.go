package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"
)

// Config configures a proxy. Make one with Source.Load. settings.go describes its fields.
type Config struct {
	Listen    string
	TLSCert   string
	TLSKey    string
	Admin     string
	AdminTLS  bool
	Store     string
	Namespace string
	Drain     time.Duration
	AccessLog bool
	LogFormat string
	LogLevel  string

	// Policy is for requests that match no route. A route inherits what it does not set.
	Policy

	// Routes are tried in order. The first that matches serves the request.
	Routes []Route

	checkStore func(string) error // of the Source
	source     *Source            // that a reload loads again
}

// Route is a policy for some requests.
type Route struct {
	Host string
	Path pattern
	// The policy's Methods are also the methods that the route is for.
	Policy
}

// Bind makes every setting a flag of fs, with its default. It leaves out flags that fs has
// already, because other commands have --store and --namespace too.
func (c *Config) Bind(fs *pflag.FlagSet) {
	*c = defaults()
	bind(fs, c.settings())
}

// StoreTimeout returns the longest time that a guarded request waits for the store.
func (c *Config) StoreTimeout() (longest time.Duration) {
	for _, r := range c.guarded() {
		longest = max(longest, r.Options.StoreTimeout)
	}
	return longest
}

// Source is where the settings of a proxy come from.
type Source struct {
	// File is a YAML file; "" for none.
	File string
	// Flags are the flags of Config.Bind.
	Flags *pflag.FlagSet
	// Getenv returns the value of an environment variable, or "".
	Getenv func(string) string
	// CheckStore returns an error for text that is no URL of a store.
	CheckStore func(string) error

	level slog.LevelVar // of the logger of each configuration that is loaded
}

// Load returns the configuration: the defaults, then the settings of the file, then the
// environment variables, then the flags that were given. The error has a line for each fault.
// It names the setting, the variable or, for the file, the line and the column.
func (s *Source) Load() (*Config, error) {
	c := defaults()
	c.source, c.checkStore = s, s.CheckStore
	f := new(file)
	if s.File != "" {
		f = open(s.File)
	}
	// A preset is overridden by every other setting, wherever it is set.
	faults := s.override(&c, true)
	f.set(f.fields, c.settings())
	faults = append(faults, s.override(&c, false)...)
	if len(faults)+len(f.faults) == 0 {
		if err := c.check(len(f.routes)); err != nil {
			f.contradicts(f.fields, nil, err)
		}
	}
	inherited := len(faults)+len(f.faults) > 0
	for _, node := range f.routes {
		r := Route{Policy: c.Policy}
		fields, before := f.fieldsOf(node), len(f.faults)
		f.set(fields, r.settings())
		if err := r.check(); err != nil && !inherited && len(f.faults) == before {
			f.contradicts(fields, node, err)
		}
		c.Routes = append(c.Routes, r)
	}
	return &c, errors.Join(append(faults, f.faults...)...)
}

// reload returns the configuration of today. A file that ends when it was read once, such as a
// pipe, is an error.
func (s *Source) reload() (*Config, error) {
	if info, err := os.Stat(s.File); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("config: %s is not a regular file, so it cannot be read again: restart the proxy", s.File)
	}
	return s.Load()
}

// override sets what the environment and then the flags say: the preset, or all but the preset.
func (s *Source) override(c *Config, presets bool) (faults []error) {
	for _, row := range c.settings() {
		if presets != (row.name == presetName) {
			continue
		}
		if text := s.Getenv(row.variable()); text != "" {
			if err := row.value.Set(text); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", row.variable(), err))
			}
		}
		if flag := s.Flags.Lookup(row.name); flag != nil && flag.Changed {
			if err := row.value.Set(flag.Value.String()); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", row.name, err))
			}
		}
	}
	return faults
}

// settingError is an error of a setting that contradicts another one, or is missing.
type settingError struct{ setting, message string }

func (e *settingError) Error() string { return e.setting + ": " + e.message }

// check refuses settings that contradict each other, at the top of a file with some routes.
func (c *Config) check(routes int) *settingError {
	switch {
	case c.Listen == "":
		return &settingError{"listen", "the address is missing"}
	case c.Upstream == "" && routes == 0:
		return &settingError{"upstream", "it is missing; name the origin, as in --upstream http://127.0.0.1:3000"}
	}
	if err := c.checkTLS(); err != nil {
		return err
	}
	return c.Policy.check()
}

// checkTLS refuses a certificate that cannot be used.
func (c *Config) checkTLS() *settingError {
	switch {
	case c.TLSCert == "" && c.TLSKey == "" && c.AdminTLS:
		return &settingError{"admin-tls", "it needs tls-cert and tls-key"}
	case c.TLSCert == "" && c.TLSKey == "":
		return nil
	case c.TLSCert == "":
		return &settingError{"tls-key", "it needs tls-cert"}
	case c.TLSKey == "":
		return &settingError{"tls-cert", "it needs tls-key"}
	}
	if _, err := newCertificate(c.TLSCert, c.TLSKey, nil); err != nil {
		return &settingError{"tls-cert", err.Error()}
	}
	return nil
}

// check refuses settings that contradict each other, and a route without an upstream.
func (r *Route) check() *settingError {
	if r.Upstream == "" {
		return &settingError{"upstream", "it is missing, here and at the top"}
	}
	return r.Policy.check()
}
