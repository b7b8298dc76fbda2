package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/cmd/dibs/internal/certificate"
	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/page"
)

// Config configures a proxy. Make one with Source.Load. settings.go describes its fields.
type Config struct {
	Listen          string
	TLSCert         string
	TLSKey          string
	Admin           string
	AdminTLS        bool
	AdminTokens     string // the file of credentials of the page for operators; "" for none
	AdminUsers      page.SingleSignOn
	AdminShowBodies bool // on the page
	Store           string
	Namespace       string
	Drain           time.Duration
	DrainDelay      time.Duration
	AccessLog       bool
	LogFormat       string
	LogLevel        string

	// Policy is for requests that match no route. A route inherits what it does not set.
	Policy

	// Routes are tried in order. The first that matches serves the request.
	Routes []Route

	checkStore func(string) error // of the Source
	source     *Source            // that a reload loads again
}

// Route is a policy for some requests.
type Route struct {
	Host hostPattern
	Path pattern
	// Only are the methods that the route is for, which it sets itself; nil for all. The methods that
	// it inherits say only what is guarded.
	Only []string
	Policy

	place string // in the file
}

// Bind makes every setting a flag of fs, with its default. It leaves out flags that fs has
// already, because other commands have --store and --namespace too.
func (c *Config) Bind(fs *pflag.FlagSet) {
	*c = defaults()
	bind(fs, c.settings())
}

// StoreTimeout returns the longest time that a guarded request may wait for the store, at least
// the default of store-timeout. A client whose calls end earlier is not for this proxy.
func (c *Config) StoreTimeout() time.Duration {
	longest := idempotency.DefaultStoreTimeout
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
	off := !c.Guard // in the file, so its settings contradict that
	faults = append(faults, s.override(&c, false)...)
	if len(faults)+len(f.faults) == 0 {
		if err := c.check(len(f.routes)); err != nil {
			f.contradicts(f.fields, nil, err)
		}
	}
	inherited := len(faults)+len(f.faults) > 0
	for _, node := range f.routes {
		r := Route{Policy: c.Policy, place: place(node)}
		fields, before := f.fieldsOf(node), len(f.faults)
		f.set(fields, r.settings())
		names := namesOf(fields)
		if slices.Contains(names, "methods") {
			r.Only = r.Options.Methods
		}
		err := r.check(c.Routes)
		if err == nil {
			err = r.idle(names, off || slices.Contains(names, "guard"))
		}
		if err == nil {
			err = c.checkLoop(r.Upstream)
		}
		if err != nil && !inherited && len(f.faults) == before {
			f.contradicts(fields, node, err)
		}
		if len(f.faults) == before {
			c.Routes = append(c.Routes, r)
		}
	}
	if len(faults)+len(f.faults) == 0 {
		if err := c.idle(namesOf(f.fields), off); err != nil {
			f.contradicts(f.fields, nil, err)
		} else if err := c.idle(s.given(), s.Getenv("DIBS_PROXY_GUARD") == ""); err != nil {
			faults = append(faults, err)
		}
	}
	return &c, errors.Join(append(faults, f.faults...)...)
}

// given returns the names of the flags that were given.
func (s *Source) given() (names []string) {
	s.Flags.Visit(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
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
	if listen, admin := addressOf(c.Listen), addressOf(c.Admin); c.Admin != "" && listen.excludes(admin) {
		return &settingError{"admin", fmt.Sprintf("%s has the port of listen, %s; choose another port", c.Admin, c.Listen)}
	}
	if err := c.checkTLS(); err != nil {
		return err
	}
	if c.AdminTokens != "" {
		if _, err := credential.Read(c.AdminTokens); err != nil {
			return &settingError{"admin-tokens", err.Error()}
		}
	}
	if err := c.checkLoop(c.Upstream); err != nil {
		return err
	}
	return c.Policy.check()
}

// checkLoop refuses an upstream that is the proxy itself.
func (c *Config) checkLoop(upstream string) *settingError {
	if upstream == "" || !addressOf(c.Listen).reachedBy(originOf(upstream)) {
		return nil
	}
	return &settingError{"upstream", fmt.Sprintf("it is where the proxy itself listens, %s; name the address of the origin", c.Listen)}
}

// checkTLS refuses a certificate that cannot be used.
func (c *Config) checkTLS() *settingError {
	switch {
	case c.TLSCert == "" && c.TLSKey == "" && c.AdminTLS:
		return &settingError{"admin-tls", "it needs tls-cert and tls-key"}
	case c.AdminTLS && c.Admin == "":
		return &settingError{"admin-tls", "it has no effect without admin; set admin, as in 127.0.0.1:9090, or remove it"}
	case c.AdminTokens != "" && c.Admin == "":
		return &settingError{"admin-tokens", "it has no effect without admin; set admin, as in 127.0.0.1:9090, or remove it"}
	case c.AdminUsers.Header != "" && c.Admin == "":
		return &settingError{"admin-user-header", "it has no effect without admin; set admin, as in 127.0.0.1:9090, or remove it"}
	case c.AdminUsers.Act && c.AdminUsers.Header == "":
		return &settingError{"admin-user-act", "it has no effect without admin-user-header"}
	case c.AdminShowBodies && c.Admin == "":
		return &settingError{"admin-show-bodies", "it has no effect without admin; set admin, as in 127.0.0.1:9090, or remove it"}
	case c.TLSCert == "" && c.TLSKey == "":
		return nil
	case c.TLSCert == "":
		return &settingError{"tls-key", "it needs tls-cert"}
	case c.TLSKey == "":
		return &settingError{"tls-cert", "it needs tls-key"}
	}
	if _, err := certificate.New(c.TLSCert, c.TLSKey, nil); err != nil {
		return &settingError{"tls-cert", err.Error()}
	}
	return nil
}

// check refuses settings that contradict each other, a route without an upstream, and one for which
// the routes before it leave no request.
func (r *Route) check(before []Route) *settingError {
	if r.Upstream == "" {
		return &settingError{"upstream", "it is missing, here and at the top"}
	}
	for i := range before {
		if b := &before[i]; b.covers(r) {
			return &settingError{"path", fmt.Sprintf("the route %s is never used, because the route %s before it (%s) has all its requests; move it up, or remove it",
				r.title(), b.title(), b.place)}
		}
	}
	return r.Policy.check()
}

// covers reports whether r matches every request that other matches.
func (r *Route) covers(other *Route) bool {
	missing := func(m string) bool { return !slices.Contains(r.Only, m) }
	methods := len(r.Only) == 0 || len(other.Only) > 0 && !slices.ContainsFunc(other.Only, missing)
	return methods && r.Host.covers(other.Host) && r.Path.covers(other.Path)
}

// title names the route in an error, as it is written.
func (r *Route) title() string {
	words := []string{strings.Join(r.Only, ","), r.Host.text + r.Path.text}
	words = slices.DeleteFunc(words, func(s string) bool { return s == "" })
	return cmp.Or(strings.Join(words, " "), "for every request")
}

// idle returns an error for a setting of these that no request of the proxy is affected by. guard
// says that a guard that is off counts.
func (c *Config) idle(names []string, guard bool) (err *settingError) {
	policies := make([]*Policy, 0, len(c.Routes)+1)
	if c.Upstream != "" || len(c.Routes) == 0 {
		policies = append(policies, &c.Policy)
	}
	for i := range c.Routes {
		policies = append(policies, &c.Routes[i].Policy)
	}
	for _, name := range names {
		for _, p := range policies {
			if err = p.idle([]string{name}, guard); err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
