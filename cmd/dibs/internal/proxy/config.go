package proxy

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"
)

// Config configures a proxy. Make one with Load. settings.go describes its fields.
type Config struct {
	Listen    string
	Admin     string
	Store     string
	Namespace string
	Drain     time.Duration
	AccessLog bool

	// Policy is for requests that match no route. A route inherits what it does not set.
	Policy

	// Routes are tried in order. The first that matches serves the request.
	Routes []Route
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

// Load returns the configuration: the defaults, then the settings of the file, if there is
// one, then the flags that were given. The error names the setting and, for the file, its
// line.
func Load(file string, flags *pflag.FlagSet) (*Config, error) {
	c := defaults()
	// A preset is overridden by the file and by other flags.
	if err := c.setFlags(flags, true); err != nil {
		return nil, err
	}
	routes := routeNodes(nil)
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
		if routes, err = c.read(text); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	if err := c.setFlags(flags, false); err != nil {
		return nil, err
	}
	for _, node := range routes {
		r, err := c.route(node)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		c.Routes = append(c.Routes, *r)
	}
	return &c, c.check()
}

// setFlags sets what the flags say: the preset, or all but the preset.
func (c *Config) setFlags(flags *pflag.FlagSet, presets bool) (err error) {
	all := c.settings()
	flags.Visit(func(f *pflag.Flag) {
		i := slices.IndexFunc(all, func(s setting) bool { return s.name == f.Name })
		if i < 0 || err != nil || presets != (f.Name == presetName) {
			return
		}
		if err = all[i].value.Set(f.Value.String()); err != nil {
			err = fmt.Errorf("%s: %w", f.Name, err)
		}
	})
	return err
}

// check refuses settings that contradict each other.
func (c *Config) check() error {
	switch {
	case c.Listen == "":
		return errors.New("listen: the address is missing")
	case c.Upstream == "" && len(c.Routes) == 0:
		return errors.New("upstream: it is missing; name the origin, as in --upstream http://127.0.0.1:3000")
	}
	return c.Policy.check()
}
