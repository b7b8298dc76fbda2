package proxy

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/pflag"
)

// Config is what a proxy is told. Make one with Load.
type Config struct {
	Listen    string   `yaml:"listen"`
	Admin     string   `yaml:"admin"`
	Store     string   `yaml:"store"`
	Namespace string   `yaml:"namespace"`
	Drain     Duration `yaml:"drain"`
	AccessLog Switch   `yaml:"access-log"`

	// Policy is that of requests which no route matches, and what routes say
	// nothing about.
	Policy `yaml:",inline"`

	// Routes are tried in order; the first that matches has the request.
	Routes []Route `yaml:"-"`
}

// Route is a policy for some requests.
type Route struct {
	Host string `yaml:"host"`
	Path string `yaml:"path"`
	// The policy's Methods are also which methods the route is for.
	Policy `yaml:",inline"`

	pattern pattern
}

// Bind makes the fields flags of fs, with their defaults. Store and Namespace
// are flags of other commands, too, and not bound here.
func (c *Config) Bind(fs *pflag.FlagSet) {
	*c = Config{Listen: "127.0.0.1:8080", Drain: Duration(30 * time.Second), AccessLog: true, Policy: defaultPolicy()}
	fs.StringVar(&c.Listen, "listen", c.Listen, "the `ADDR` to serve on; port 0 takes a free one")
	fs.StringVar(&c.Admin, "admin", c.Admin, "the `ADDR` of /healthz, /readyz, /version and /metrics, for Prometheus (default off)")
	fs.Var(&c.Drain, "drain", "how long requests may take to finish after SIGTERM")
	fs.Var(&c.AccessLog, "access-log", "log each request on stderr: on or off")
	c.bind(fs)
}

// Load returns the configuration: the defaults, then what the file says (if
// there is one), then the flags that were given. The error names the field and,
// for one of the file, its line.
func Load(file string, flags *pflag.FlagSet) (*Config, error) {
	c := new(Config)
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.Bind(fs)
	fs.StringVar(&c.Store, "store", "", "")
	fs.StringVar(&c.Namespace, "namespace", "", "")
	if f := flags.Lookup("for"); f != nil && f.Changed {
		c.For = f.Value.String()
		c.preset()
	}
	var routes []ast.Node
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
		if routes, err = c.read(text); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	var err error
	flags.Visit(func(f *pflag.Flag) {
		if own := fs.Lookup(f.Name); own != nil && err == nil {
			err = own.Value.Set(f.Value.String())
		}
	})
	if err != nil {
		return nil, err
	}
	for _, node := range routes {
		r, err := c.route(node)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		c.Routes = append(c.Routes, *r)
	}
	return c, c.check()
}

// read takes in a file, except for its routes, which it returns.
func (c *Config) read(text []byte) ([]ast.Node, error) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, plainError(err)
	}
	if len(file.Docs) > 1 && file.Docs[1].Body != nil {
		return nil, errors.New("there must be one document only")
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return nil, nil
	}
	body := file.Docs[0].Body
	var routes []ast.Node
	if top, ok := body.(*ast.MappingNode); ok {
		rest := top.Values[:0:0]
		for _, v := range top.Values {
			if v.Key.String() != "routes" {
				rest = append(rest, v)
				continue
			}
			list, ok := v.Value.(*ast.SequenceNode)
			if !ok {
				return nil, fmt.Errorf("line %d: routes must be a sequence", v.GetToken().Position.Line)
			}
			routes = list.Values
		}
		top.Values = rest
		if len(rest) == 0 {
			return routes, nil
		}
	}
	if err := readPolicy(body, c, &c.Policy); err != nil {
		return nil, err
	}
	return routes, nil
}

// readPolicy reads a node into v, which has the policy in it. A preset that the node names
// gives way to what it says besides.
func readPolicy(node ast.Node, v any, p *Policy) error {
	before := p.For
	if err := yaml.NodeToValue(node, v, yaml.Strict()); err != nil {
		return plainError(err)
	}
	if p.For == before {
		return nil
	}
	p.preset()
	if err := yaml.NodeToValue(node, v, yaml.Strict()); err != nil {
		return plainError(err)
	}
	return nil
}

// route takes in one route. What it does not say, it has from the top.
func (c *Config) route(node ast.Node) (*Route, error) {
	line := node.GetToken().Position.Line
	r := &Route{Policy: c.Policy}
	err := readPolicy(node, r, &r.Policy)
	if err != nil {
		return nil, err
	}
	if r.pattern, err = parsePattern(r.Path); err != nil {
		return nil, fmt.Errorf("line %d: path: %w", line, err)
	}
	if strings.ContainsAny(r.Host, "/@ ") {
		return nil, fmt.Errorf("line %d: host: %q is not a host", line, r.Host)
	}
	if _, err := r.options(); err != nil {
		return nil, fmt.Errorf("line %d: %w", line, err)
	}
	if r.Upstream == "" {
		return nil, fmt.Errorf("line %d: upstream: it is missing, here and at the top", line)
	}
	return r, nil
}

// check refuses what does not fit together.
func (c *Config) check() error {
	switch {
	case c.Listen == "":
		return errors.New("listen: the address is missing")
	case c.Upstream == "" && len(c.Routes) == 0:
		return errors.New("upstream: it is missing; name the origin, as in --upstream http://127.0.0.1:3000")
	case c.Drain < 0:
		return fmt.Errorf("drain: %v is negative", &c.Drain)
	}
	_, err := c.options()
	return err
}

// plainError is the library's error on as few lines as say it.
func plainError(err error) error {
	return errors.New(strings.TrimSpace(yaml.FormatError(err, false, true)))
}
