package proxy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
