package proxy

import (
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

// TestEnvironmentPreset: a preset of the environment is overridden by the file.
func TestEnvironmentPreset(t *testing.T) {
	c, err := loadFrom(t, "upstream: http://a\nwait: 1s\n", map[string]string{"DIBS_PROXY_FOR": "webhook"})
	testkit.Must(t, err)
	if !slices.Equal(c.Scope, []string{"none"}) || c.Wait != time.Second {
		t.Errorf("the configuration is %+v", c)
	}
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
	if err == nil || !strings.HasPrefix(err.Error(), "key-per: principal cannot be used") {
		t.Errorf("the error is %v", err)
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
