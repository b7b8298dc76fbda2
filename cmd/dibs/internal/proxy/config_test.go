package proxy

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// load loads a configuration from a file's text and flags.
func load(t *testing.T, text string, flags ...string) (*Config, error) {
	t.Helper()
	return loadFrom(t, text, nil, flags...)
}

// loadFrom is load with an environment, too.
func loadFrom(t *testing.T, text string, environment map[string]string, flags ...string) (*Config, error) {
	t.Helper()
	file := ""
	if text != "" {
		// Not t.TempDir: the test's name, and so the field's, would be in it.
		dir, err := os.MkdirTemp("", "dibs")
		testkit.Must(t, err)
		t.Cleanup(func() { os.RemoveAll(dir) })
		file = filepath.Join(dir, "dibs.yaml")
		testkit.Must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	fs := pflag.NewFlagSet("dibs proxy", pflag.ContinueOnError)
	new(Config).Bind(fs)
	if err := fs.Parse(flags); err != nil {
		return nil, err
	}
	return (&Source{File: file, Flags: fs, Getenv: func(name string) string { return environment[name] }}).Load()
}

// TestLoad: flags override the file, the file overrides the defaults, and a route overrides
// both.
func TestLoad(t *testing.T) {
	c, err := load(t, "\ufeff"+`listen: 127.0.0.1:0
upstream: http://127.0.0.1:3000
retention: 48h
max-body: 2MiB
max-stored: 1000
methods: [POST, PATCH]
routes:
  - host: api.example.com
    path: /v1/charges/**
    methods: POST
    require-key: true
    on-crash: at-most-once
    retention: 72h
  - path: /v1/uploads/*
    methods: PUT, PATCH
    max-body: 64 MiB
    upstream: http://127.0.0.1:3001
`, "--lease", "10s", "--max-body", "3MiB", "--scope", "header:X-Tenant")
	testkit.Must(t, err)
	if c.Listen != "127.0.0.1:0" || c.Options.Retention != 48*time.Hour || c.Options.MaxBody != 3<<20 || c.Options.MaxStored != 1000 ||
		c.Options.Lease != 10*time.Second || !slices.Equal(c.Scope, []string{"header:X-Tenant"}) || !slices.Equal(c.Options.Methods, []string{"POST", "PATCH"}) {
		t.Errorf("the top is %+v", c)
	}
	if len(c.Routes) != 2 {
		t.Fatalf("there are %d routes", len(c.Routes))
	}
	first, second := c.Routes[0], c.Routes[1]
	if first.Host.text != "api.example.com" || !first.Options.RequireKey || first.Options.OnCrash != "at-most-once" || first.Options.Retention != 72*time.Hour ||
		first.Options.Lease != 10*time.Second || first.Options.MaxBody != 3<<20 || first.Upstream != "http://127.0.0.1:3000" {
		t.Errorf("the first route is %+v", first)
	}
	if second.Options.RequireKey || second.Options.OnCrash != "takeover" || second.Options.MaxBody != 64<<20 || second.Options.Retention != 48*time.Hour ||
		second.Upstream != "http://127.0.0.1:3001" || !slices.Equal(second.Options.Methods, []string{"PUT", "PATCH"}) {
		t.Errorf("the second route is %+v", second)
	}
}

// TestPreset: a preset is overridden by other settings, in the file and by flags.
func TestPreset(t *testing.T) {
	const text = `
upstream: http://127.0.0.1:3000
scope: authorization
routes:
  - path: /hooks/*
    for: stripe
    wait: 1s
  - path: /api/*
`
	c, err := load(t, text)
	testkit.Must(t, err)
	hooks, api := c.Routes[0], c.Routes[1]
	if !slices.Equal(hooks.Scope, []string{"none"}) || hooks.middleware().Key == nil || hooks.Options.Wait != time.Second {
		t.Errorf("the route of the hooks is %+v", hooks)
	}
	if !slices.Equal(api.Scope, []string{"authorization"}) || api.middleware().Key != nil || api.Options.Wait != 0 {
		t.Errorf("the other route is %+v", api)
	}
	if c, err = load(t, "", "--upstream", "http://a", "--for", "github", "--keep", "2xx,404"); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Scope, []string{"none"}) || !slices.Equal(c.Options.Keep, []string{"2xx", "404"}) || c.Options.Wait != 5*time.Second {
		t.Errorf("by flags: %+v", c)
	}
}

// TestEveryOptionHasAFlag: every option of the middleware in docs/http.md is a flag and a field
// of the configuration file with the page's name, or is for Go only.
func TestEveryOptionHasAFlag(t *testing.T) {
	page := testkit.ReadFile(t, "../../../../docs/http.md")
	text := strings.Join(strings.Fields(string(page)), " ")
	fs := pflag.NewFlagSet("dibs proxy", pflag.ContinueOnError)
	new(Config).Bind(fs)
	fields := map[string]bool{}
	for _, s := range new(Policy).settings() {
		fields[s.name] = true
	}
	for option, flag := range renamed {
		if !strings.Contains(option, ".") && !strings.Contains(text, "`"+option+"` is `--"+flag+"`") {
			t.Errorf("docs/http.md does not say that %s is --%s", option, flag)
		}
	}
	goAlone := []string{"MaxMemory", "Transactor", "Commits", "Redact"}
	if list := "`MaxMemory`, `Transactor`, `Commits` and `Redact` are for Go alone."; !strings.Contains(text, list) {
		t.Errorf("docs/http.md does not say: %s", list)
	}
	words := regexp.MustCompile("URL|[A-Z][a-z]*|[0-9][0-9a-z]*")
	for f := range reflect.TypeFor[idempotency.Options]().Fields() {
		if !strings.Contains(text, "`"+f.Name+"`") {
			continue
		}
		flag := renamed[f.Name]
		if flag == "" {
			flag = strings.ToLower(strings.Join(words.FindAllString(f.Name, -1), "-"))
		}
		has := fs.Lookup(flag) != nil
		if has && settingOf(f.Name) != flag {
			t.Errorf("an error of %s names %s; want %s", f.Name, settingOf(f.Name), flag)
		}
		if want := !slices.Contains(goAlone, f.Name); has != want || fields[flag] != want {
			t.Errorf("docs/http.md names %s; --%s is a flag: %v, and a field: %v; want %v", f.Name, flag, has, fields[flag], want)
		}
	}
}

// TestPageHasEverySetting: docs/proxy.md has a row for each setting.
func TestPageHasEverySetting(t *testing.T) {
	page := testkit.ReadFile(t, "../../../../docs/proxy.md")
	for _, s := range append(new(Config).settings(), new(Route).settings()...) {
		if !strings.Contains(string(page), "\n| `"+s.name+"` |") {
			t.Errorf("docs/proxy.md has no row for %s", s.name)
		}
	}
}

// TestFlagsOfThePageAreRead: the proxy takes the flags as docs/http.md writes them.
func TestFlagsOfThePageAreRead(t *testing.T) {
	page := testkit.ReadFile(t, "../../../../docs/http.md")
	shown := regexp.MustCompile("`(--[a-z0-9-]+[ =][^`]+)`").FindAllStringSubmatch(string(page), -1)
	if len(shown) < 5 {
		t.Fatalf("the page shows %d flags with a value", len(shown))
	}
	for _, m := range shown {
		fs := pflag.NewFlagSet("dibs proxy", pflag.ContinueOnError)
		c := new(Config)
		c.Bind(fs)
		if err := fs.Parse(strings.Fields(m[1])); err != nil || fs.NArg() > 0 {
			t.Errorf("%s: %v, and %q is left", m[1], err, fs.Args())
		}
		if err := c.Policy.check(); err != nil {
			t.Errorf("%s: %v", m[1], err)
		}
	}
}

func TestPattern(t *testing.T) {
	tests := []struct {
		pattern string
		yes, no []string
	}{
		{"", []string{"/", "/a", "", "*"}, nil},
		{"/", []string{"/", "//", "/.", "/a/.."}, []string{"/a", "", "*"}},
		{
			"/v1/charges", []string{"/v1/charges", "/v1//charges", "//v1/charges", "/./v1/charges", "/x/../v1/./charges", "/../v1/charges"},
			[]string{"/v1/charges/", "/v1/charges/.", "/v1/charge", "/v1", "/V1/charges", "/v1/charges/.."},
		},
		{"/v1/*", []string{"/v1/a", "/v1/a b"}, []string{"/v1/", "/v1", "/v1/a/b"}},
		{"/v1/*/refund", []string{"/v1/7/refund"}, []string{"/v1/refund", "/v1//refund", "/v1/7/8/refund"}},
		{"/v1/**", []string{"/v1", "/v1/", "/v1/a", "/v1/a/b/"}, []string{"/v2", "/v10", "/"}},
		{"/**/pay", []string{"/pay", "/a/pay", "/a//b/pay"}, []string{"/pay/", "/a/payer", "/"}},
		{"/**/a/**", []string{"/a", "/x/a/y/z"}, []string{"/b", "/x/ab"}},
		{"/a.b/*", []string{"/a.b/\n"}, []string{"/axb/c"}},
		{"/a/**/b/*", []string{"/a/b/c", "/a/x/y/b/z"}, []string{"/a/b", "/a/b/", "/b/c"}},
	}
	for _, test := range tests {
		p, err := parsePattern(test.pattern)
		testkit.Must(t, err)
		for _, path := range test.yes {
			if !p.match(path) {
				t.Errorf("%q does not match %q", test.pattern, path)
			}
		}
		for _, path := range test.no {
			if p.match(path) {
				t.Errorf("%q matches %q", test.pattern, path)
			}
		}
	}
}
