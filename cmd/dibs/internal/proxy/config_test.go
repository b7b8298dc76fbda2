package proxy

import (
	"maps"
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
	Bind(fs)
	flags, environment = asVariables(fs, flags, environment)
	if err := fs.Parse(flags); err != nil {
		return nil, err
	}
	var environ []string
	for name, value := range environment {
		environ = append(environ, name+"="+value)
	}
	return (&Source{File: file, Flags: fs, Getenv: func(name string) string { return environment[name] }, Environ: environ}).Load()
}

// asVariables moves what is a setting and not a flag from flags to the environment, so that a test can
// write each setting as --NAME VALUE.
func asVariables(fs *pflag.FlagSet, flags []string, environment map[string]string) ([]string, map[string]string) {
	environment = maps.Clone(environment)
	if environment == nil {
		environment = map[string]string{}
	}
	all := settingsOf(new(Config))
	for i := 0; i < len(flags); i++ {
		name, value, has := strings.Cut(strings.TrimPrefix(flags[i], "--"), "=")
		row := slices.IndexFunc(all, func(s setting) bool { return s.name == name })
		if row < 0 || fs.Lookup(name) != nil {
			continue
		}
		n := 1
		if _, isSwitch := all[row].field.Interface().(bool); isSwitch && !has {
			value = "true"
		} else if !has {
			n, value = 2, flags[i+1]
		}
		environment[all[row].variable()] = value
		flags = slices.Delete(slices.Clone(flags), i, i+n)
		i--
	}
	return flags, environment
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
	if c.Listen != "127.0.0.1:0" || c.Retention != 48*time.Hour || c.MaxBody != 3<<20 || c.MaxStored != 1000 ||
		c.Lease != 10*time.Second || !slices.Equal(c.Scope, []string{"header:X-Tenant"}) || !slices.Equal(c.Methods, []string{"POST", "PATCH"}) {
		t.Errorf("the top is %+v", c)
	}
	if len(c.Routes) != 2 {
		t.Fatalf("there are %d routes", len(c.Routes))
	}
	first, second := c.Routes[0], c.Routes[1]
	if first.Host.text != "api.example.com" || !first.RequireKey || first.OnCrash != "at-most-once" || first.Retention != 72*time.Hour ||
		first.Lease != 10*time.Second || first.MaxBody != 3<<20 || first.Upstream != "http://127.0.0.1:3000" {
		t.Errorf("the first route is %+v", first)
	}
	if second.RequireKey || second.OnCrash != "takeover" || second.MaxBody != 64<<20 || second.Retention != 48*time.Hour ||
		second.Upstream != "http://127.0.0.1:3001" || !slices.Equal(second.Methods, []string{"PUT", "PATCH"}) {
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
	if !slices.Equal(hooks.Scope, []string{"none"}) || hooks.options().Key == nil || hooks.Wait != time.Second {
		t.Errorf("the route of the hooks is %+v", hooks)
	}
	if !slices.Equal(api.Scope, []string{"authorization"}) || api.options().Key != nil || api.Wait != 0 {
		t.Errorf("the other route is %+v", api)
	}
	c, err = load(t, "upstream: http://x\nfor: stripe\nwait: 9s\nroutes: [{path: /a, for: stripe}, {path: /b, for: github}]\n")
	testkit.Must(t, err)
	if same, other := c.Routes[0], c.Routes[1]; same.Wait != 9*time.Second || other.Wait != 5*time.Second {
		t.Errorf("the preset of the top waits for %v, and another for %v; want 9s, which the top sets, and the preset's 5s", same.Wait, other.Wait)
	}
	if c, err = load(t, "", "--upstream", "http://a", "--for", "github", "--keep", "2xx,404"); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Scope, []string{"none"}) || !slices.Equal(c.Keep, []string{"2xx", "404"}) || c.Wait != 5*time.Second {
		t.Errorf("by flags: %+v", c)
	}
}

// TestEveryOptionIsASetting: every option of the middleware in docs/reference/http.md is a setting with the
// page's name, or is for Go only.
func TestEveryOptionIsASetting(t *testing.T) {
	page := testkit.ReadFile(t, "../../../../docs/reference/http.md")
	text := strings.Join(strings.Fields(string(page)), " ")
	is := map[string]bool{}
	for _, s := range settingsOf(new(Policy)) {
		is[s.name] = true
	}
	for option, name := range renamed {
		if !strings.Contains(text, "`"+option+"` is `"+name+"`") {
			t.Errorf("docs/reference/http.md does not say that %s is %s", option, name)
		}
	}
	goAlone := []string{"Transactor", "Commits", "Redact"}
	if list := "`Transactor`, `Commits` and `Redact` are for Go alone."; !strings.Contains(text, list) {
		t.Errorf("docs/reference/http.md does not say: %s", list)
	}
	options := slices.Collect(reflect.TypeFor[idempotency.Options]().Fields())
	for f := range reflect.TypeFor[idempotency.MCP]().Fields() {
		f.Name = "MCP." + f.Name
		options = append(options, f)
	}
	for _, f := range options {
		if want := !slices.Contains(goAlone, f.Name); strings.Contains(text, "`"+f.Name+"`") && is[settingOf(f.Name)] != want {
			t.Errorf("docs/reference/http.md names %s; %s is a setting: %v; want %v", f.Name, settingOf(f.Name), !want, want)
		}
	}
}

// TestOptionsHaveTheSettings: each field of a policy that is an option, too, reaches the middleware.
func TestOptionsHaveTheSettings(t *testing.T) {
	p := defaults().Policy
	all := settingsOf(&p)
	for _, text := range [][2]string{
		{"methods", "PUT"}, {"require-key", "true"}, {"strict-key", "true"}, {"key-per", "path"}, {"wait", "7s"}, {"conflict-status", "423"},
		{"mismatch-status", "409"}, {"lease", "7s"}, {"on-crash", "at-most-once"}, {"handler-limit", "7s"}, {"max-concurrent", "7"},
		{"max-body-memory", "7MiB"}, {"max-body", "7MiB"}, {"body-timeout", "7s"}, {"retention", "7s"}, {"keep", "2xx"}, {"max-stored", "7KiB"},
		{"on-oversize", "rerun"}, {"keep-set-cookie", "true"}, {"not-stored", "X-A"}, {"store-timeout", "7s"}, {"on-store-failure", "open"},
	} {
		i := slices.IndexFunc(all, func(s setting) bool { return s.name == text[0] })
		testkit.Must(t, all[i].set(text[1]))
	}
	want := idempotency.Options{
		Methods: []string{"PUT"}, RequireKey: true, StrictKey: true, KeyPer: "path", Wait: 7 * time.Second, ConflictStatus: 423,
		MismatchStatus: 409, Lease: 7 * time.Second, OnCrash: "at-most-once", HandlerLimit: 7 * time.Second, MaxConcurrent: 7,
		MaxBodyMemory: 7 << 20, MaxBody: 7 << 20, BodyTimeout: 7 * time.Second, Retention: 7 * time.Second, Keep: []string{"2xx"}, MaxStored: 7 << 10,
		OnOversize: "rerun", KeepSetCookie: true, NotStored: []string{"X-A"}, StoreTimeout: 7 * time.Second, OnStoreFailure: "open",
	}
	got := *p.options()
	got.Scope, got.WriteProblem = nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the options are %+v; want %+v", got, want)
	}
}

// TestFlagsOfThePageAreRead: the proxy takes the flags as docs/reference/http.md writes them.
func TestFlagsOfThePageAreRead(t *testing.T) {
	page := testkit.ReadFile(t, "../../../../docs/reference/http.md")
	shown := regexp.MustCompile("`(--[a-z0-9-]+[ =][^`]+)`").FindAllStringSubmatch(string(page), -1)
	if len(shown) < 5 {
		t.Fatalf("the page shows %d flags with a value", len(shown))
	}
	for _, m := range shown {
		fs := pflag.NewFlagSet("dibs proxy", pflag.ContinueOnError)
		Bind(fs)
		if err := fs.Parse(append(strings.Fields(m[1]), "--upstream=http://x")); err != nil || fs.NArg() > 0 {
			t.Errorf("%s: %v, and %q is left", m[1], err, fs.Args())
		}
		if _, err := (&Source{Flags: fs, Getenv: func(string) string { return "" }}).Load(); err != nil {
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
