package proxy

import (
	"maps"
	"os"
	"os/exec"
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

// TestEnvironment: a variable overrides the file, and a flag overrides the variable. An empty
// variable counts for nothing.
func TestEnvironment(t *testing.T) {
	c, err := loadFrom(t, "upstream: http://a\nlease: 10s\nwait: 1s\nretention: 48h\nkeep: 2xx\n", map[string]string{
		"DIBS_PROXY_UPSTREAM": "http://b",
		"DIBS_PROXY_LEASE":    "20s",
		"DIBS_PROXY_WAIT":     "2s",
		"DIBS_PROXY_KEEP":     "",
		"DIBS_PROXY_METHODS":  "POST, PUT",
		"DIBS_STORE":          "redis://cache.internal",
		"DIBS_KEY":            "of dibs run",
		"DIBS_NAMESPACE":      "of dibs run",
	}, "--wait", "3s")
	testkit.Must(t, err)
	if c.Upstream != "http://b" || c.Lease != 20*time.Second || c.Wait != 3*time.Second || c.Retention != 48*time.Hour ||
		!slices.Equal(c.Keep, []string{"2xx"}) || !slices.Equal(c.Methods, []string{"POST", "PUT"}) ||
		c.Store != "redis://cache.internal" || len(c.Key) > 0 || c.Namespace != "" {
		t.Errorf("the configuration is %+v", c)
	}
}

// TestEnvironmentMisspelt: a variable that begins as the proxy's do and is none is refused by name. What
// Kubernetes sets for a service of that name is not.
func TestEnvironmentMisspelt(t *testing.T) {
	_, err := loadFrom(t, "upstream: http://a\n", map[string]string{
		"DIBS_PROXY_MAX_BODDY": "1MiB", "DIBS_PROXY_PORT": "8080", "DIBS_PROXY_NOTHING": "",
	})
	for _, want := range []string{"DIBS_PROXY_MAX_BODDY: there is no such setting; did you mean DIBS_PROXY_MAX_BODY?", "DIBS_PROXY_PORT: there is no such setting; "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v; want %q in it", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "NOTHING") {
		t.Errorf("an empty variable is a fault: %v", err)
	}
	_, err = loadFrom(t, "upstream: http://a\n", map[string]string{
		"DIBS_PROXY_SERVICE_HOST": "10.0.0.7", "DIBS_PROXY_SERVICE_PORT": "8080", "DIBS_PROXY_SERVICE_PORT_HTTP": "8080",
		"DIBS_PROXY_PORT": "tcp://10.0.0.7:8080", "DIBS_PROXY_PORT_8080_TCP": "tcp://10.0.0.7:8080", "DIBS_PROXY_PORT_8080_TCP_ADDR": "10.0.0.7",
		"DIBS_PROXY_ADMIN_SERVICE_HOST": "10.0.0.8", "DIBS_PROXY_ADMIN_PORT": "tcp://10.0.0.8:9090",
	})
	testkit.Must(t, err)
}

// TestEnvironmentRefuses: the error names each variable with a wrong value, even if a flag
// overrides it.
func TestEnvironmentRefuses(t *testing.T) {
	_, err := loadFrom(t, "wait: soon\n", map[string]string{
		"DIBS_PROXY_LEASE":    "30",
		"DIBS_PROXY_MAX_BODY": "5mb",
		"DIBS_PROXY_FOR":      "nothing",
	}, "--lease", "10s")
	if err == nil {
		t.Fatal("nothing was wrong")
	}
	for _, want := range []string{`DIBS_PROXY_LEASE: "30" `, `DIBS_PROXY_MAX_BODY: "5mb"`, `DIBS_PROXY_FOR: "nothing"`, ":1:7: wait: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %q; want %q in it", err, want)
		}
	}
	_, err = loadFrom(t, "", map[string]string{"DIBS_PROXY_UPSTREAM": "u:s3cret@host"})
	if err == nil || !strings.HasPrefix(err.Error(), "DIBS_PROXY_UPSTREAM: ") || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error is %v; want one line, without the password", err)
	}
	// The cause is not in the file, so the error has no line of it.
	_, err = loadFrom(t, "upstream: http://a\nkey: json:id\n", map[string]string{"DIBS_PROXY_KEY_PER": "principal"})
	if err == nil || !strings.HasPrefix(err.Error(), "DIBS_PROXY_KEY_PER: principal cannot be used") {
		t.Errorf("the error is %v", err)
	}
}

// TestFaultsNameWhatWasSet: an error that is found after all settings are known names the flag, the variable
// or the line that has the setting. A flag overrides a variable, and that the file.
func TestFaultsNameWhatWasSet(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "it's gone")
	fix := `there is no file ` + missing + `; make one: (umask 027; echo "1:$(openssl rand -base64 32)" >'` + strings.Replace(missing, "'", `'\''`, 1) + `')`
	text := "upstream: http://a\nkey-ring: \"" + missing + "\"\n"
	for _, test := range []struct {
		text, want string
		env        map[string]string
		args       []string
	}{
		{text, ":2:1: key-ring: " + fix, nil, nil},
		{"upstream: http://a\n", "DIBS_PROXY_KEY_RING: " + fix, map[string]string{"DIBS_PROXY_KEY_RING": missing}, nil},
		{"upstream: http://a\n", "--key-ring: " + fix, nil, []string{"--key-ring", missing}},
		{text, "--key-ring: " + fix, map[string]string{"DIBS_PROXY_KEY_RING": missing}, []string{"--key-ring", missing}},
		{text, "DIBS_PROXY_KEY_RING: " + fix, map[string]string{"DIBS_PROXY_KEY_RING": missing}, nil},
		{"listen: :80\n", "--admin: :80 has the port of listen", nil, []string{"--upstream=http://a", "--admin=:80"}},
		{"", "--upstream: it is where the proxy itself listens", nil, []string{"--listen=:80", "--upstream=http://localhost:80"}},
		{"upstream: http://a\n", "DIBS_PROXY_ADMIN_TOKENS: there is no file /none; make one: ", map[string]string{"DIBS_PROXY_ADMIN_TOKENS": "/none"}, nil},
		{"upstream: http://a\n", "--tls-cert: there is no file /none; for a trial, make both files: openssl req ", nil, []string{"--tls-cert=/none", "--tls-key=/none.key"}},
	} {
		_, err := loadFrom(t, test.text, test.env, test.args...)
		if err == nil || !strings.Contains("\n"+err.Error(), test.want) || strings.Count(err.Error(), "\n") > 0 ||
			test.want[0] != ':' && !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%q with %v %q: the error is %v; want %q", test.text, test.env, test.args, err, test.want)
		}
	}
}

// TestMissingFilesCanBeMade: the command in the error about a missing file makes one that the proxy takes.
func TestMissingFilesCanBeMade(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "a folder")
	testkit.Must(t, os.Mkdir(folder, 0o700))
	t.Chdir(folder)
	for _, args := range [][]string{
		{"--upstream=http://a", "--key-ring", filepath.Join(folder, "ring")},
		{"--upstream=http://a", "--tls-cert=my cert.pem", "--tls-key=key.pem"},
		{"--upstream=http://a", "--admin-tokens", filepath.Join(folder, "tokens"), "--admin=:0"},
		{"--config", filepath.Join(folder, "dibs.yaml")},
	} {
		check := func() error {
			file, env := "", map[string]string{}
			given := args
			switch {
			case args[0] == "--config":
				file, given = args[1], nil
			case args[1] == "--admin-tokens": // which is not a flag
				env["DIBS_PROXY_ADMIN_TOKENS"], given = args[2], []string{args[0], args[3]}
			}
			fs := pflag.NewFlagSet("dibs proxy", pflag.ContinueOnError)
			Bind(fs)
			testkit.Must(t, fs.Parse(given))
			_, err := (&Source{File: file, Flags: fs, Getenv: func(name string) string { return env[name] }}).Load()
			return err
		}
		err := check()
		if err == nil {
			t.Fatalf("%q: nothing is missing", args)
		}
		_, command, _ := strings.Cut(err.Error(), ": openssl ")
		command = "openssl " + command
		if _, make, ok := strings.Cut(err.Error(), "; make one: "); ok {
			command = make
		}
		if said, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, said)
		}
		if err := check(); err != nil {
			t.Errorf("after %s: %v", command, err)
		}
	}
}

// TestWordsAreSuggested: the error about a word that is not one of the setting's names the one that was meant.
func TestWordsAreSuggested(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--for=strip", "did you mean stripe?"},
		{"--for=GitHub", "did you mean github?"},
		{"--log-format=jsn", "did you mean json?"},
		{"--log-level=warning", "is none of debug, info, warn, error"},
		{"--on-crash=at_most_once", "did you mean at-most-once?"},
		{"--on-store-failure=opn", "did you mean open?"},
		{"--key-per=paths", "did you mean path?"},
		{"--scope=credential", "did you mean credentials?"},
		{"--scope=headers:X-Tenant", "did you mean header:NAME?"},
		{"--key=jason:id", "did you mean json:FIELD?"},
		{"errors: jsonrcp\n", "did you mean jsonrpc?"},
		{"on-oversize: tomb-stone\n", "did you mean tombstone?"},
		{"fingerprint: [json, queryorder]\n", "did you mean query-order?"},
	} {
		text, args := "", []string{"--upstream=http://a"}
		if strings.HasPrefix(test.args, "--") {
			args = append(args, test.args)
		} else {
			text = test.args
		}
		if _, err := loadFrom(t, text, nil, args...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %v; want %q in it", test.args, err, test.want)
		}
	}
}

// TestEverySettingHasAVariable: the proxy asks for a variable for each flag.
func TestEverySettingHasAVariable(t *testing.T) {
	fs := pflag.NewFlagSet("dibs proxy", pflag.ContinueOnError)
	Bind(fs)
	asked := map[string]bool{}
	_, err := (&Source{Flags: fs, Getenv: func(name string) string {
		asked[name] = true
		return ""
	}}).Load()
	if err == nil {
		t.Error("the upstream is not missing")
	}
	fs.VisitAll(func(f *pflag.Flag) {
		name := "DIBS_PROXY_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if f.Name != "store" && !asked[name] {
			t.Errorf("the proxy does not look at %s", name)
		}
	})
}
