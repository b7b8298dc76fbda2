package proxy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestCheck: what is dangerous or rarely meant in the settings is found, and nothing else.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	ring := func(name, text string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		testkit.Must(t, os.WriteFile(file, []byte(text), 0o600))
		testkit.Must(t, os.Chmod(file, mode))
		return file
	}
	const key = "2026-01:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
	private, shared := ring("private", key, 0o640), ring("shared", key, 0o644)
	sound := "upstream: http://x\nadmin: 127.0.0.1:9090\nkey-ring: " + private + "\n"
	tests := []struct {
		text string
		want string // the name of the finding and a part of its text; "" for none
	}{
		{sound, ""},
		{"upstream: http://x\nadmin: :1\nguard: false\n", ""},
		{"upstream: http://x\nkey-ring: " + private + "\n", "admin: no metrics"},
		{sound + "scope: none\n", "scope: all clients share keys"},
		{sound + "for: webhook\n", ""},
		{sound + "on-store-failure: open\n", "store-failure: run unguarded"},
		{"upstream: http://x\nadmin: :1\n", "plaintext: Answers are stored in plain text"},
		{"upstream: http://x\nadmin: :1\nkey-ring: " + ring("first", "plaintext "+key, 0o600) + "\n", "plaintext: begins with plaintext"},
		{"upstream: http://x\nadmin: :1\nkey-ring: " + ring("last", key+"plaintext", 0o600) + "\n", "plaintext: can forge them"},
		{"upstream: http://x\nadmin: :1\nkey-ring: " + shared + "\n", "secret: The file " + shared},
		{sound + "routes:\n  - {path: /a, scope: none}\n  - {path: /b}\n  - {host: h, scope: none}\n", "scope: This is so for /a, h."},
		{sound + "scope: none\nroutes:\n  - {path: /a, scope: credentials}\n", "scope: This is so for all other requests."},
		{"admin: :1\nscope: none\nkey-ring: " + private + "\nroutes:\n  - {path: /a, scope: credentials, upstream: http://x}\n", ""},
	}
	for _, test := range tests {
		c, err := load(t, test.text)
		if err != nil {
			t.Fatalf("%s: %v", test.text, err)
		}
		checkFinds(t, test.text, c.Check(time.Now()), test.want, store.SeverityAdvice)
	}
	c, err := load(t, sound)
	testkit.Must(t, err)
	checkFinds(t, "a configuration with a password", c.Check(time.Now(), shared), "secret: "+shared, store.SeverityAdvice)
}

func checkFinds(t *testing.T, text string, found []store.Finding, want string, severity store.Severity) {
	t.Helper()
	name, part, _ := strings.Cut(want, ": ")
	switch {
	case want == "" && len(found) == 0:
	case want == "" || len(found) != 1 || found[0].Name != name || found[0].Severity != severity || !strings.Contains(found[0].What, part) || found[0].Cure == "":
		t.Errorf("%s\nfound %+v\nwant %q", text, found, want)
	}
}

// TestCheckCertificate: a certificate that expires within 14 days is found.
func TestCheckCertificate(t *testing.T) {
	p := newPair(t)
	p.renew(t, 1) // for a day
	c, err := load(t, "", p.flags("--upstream", "http://x")...)
	testkit.Must(t, err)
	for _, test := range []struct {
		in       time.Duration
		want     string
		severity store.Severity
	}{
		{-14 * 24 * time.Hour, "", ""},
		{0, "certificate: " + p.cert + " expires at ", store.SeverityAdvice},
		{25 * time.Hour, "certificate: " + p.cert + " expired at ", store.SeverityDangerous},
	} {
		found := slices.DeleteFunc(c.Check(time.Now().Add(test.in)), func(f store.Finding) bool { return f.Name != "certificate" })
		checkFinds(t, fmt.Sprint(test.in), found, test.want, test.severity)
	}
}

// TestTemporaryFolder: a folder of temporary files that cannot be written is a fault of a
// configuration whose guarded bodies need it, and of no other.
func TestTemporaryFolder(t *testing.T) {
	writable := t.TempDir()
	folders := map[string]bool{writable: true, filepath.Join(t.TempDir(), "missing"): false}
	const top = "upstream: http://x\nadmin: 127.0.0.1:9090\n"
	for text, needed := range map[string]bool{
		top:                         true,
		top + "max-body: 1048577\n": true,
		top + "max-body: 1MiB\n":    false,
		top + "guard: false\n":      false,
		top + "max-body: 1KiB\nroutes:\n  - {path: /upload, max-body: 2MiB}\n":            true,
		top + "guard: false\nroutes:\n  - {path: /upload, guard: true, max-body: 1KiB}\n": false,
	} {
		t.Setenv("TMPDIR", writable) // because load writes the file there
		c, err := load(t, text)
		testkit.Must(t, err)
		for folder, ok := range folders {
			t.Setenv("TMPDIR", folder)
			t.Setenv("TMP", folder) // on Windows
			want := needed && !ok
			if err := c.checkTemporary(); (err != nil) != want {
				t.Errorf("%s: with a folder that can be written %v: %v", text, ok, err)
			}
			if want {
				checkFinds(t, text, c.checkFolder(), "temporary: The proxy does not start: max-body: ", store.SeverityDangerous)
				if !slices.ContainsFunc(c.Check(time.Now()), func(f store.Finding) bool { return f.Name == "temporary" }) {
					t.Errorf("%s: Check does not find it", text)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(folder, "dibs-body-*")); len(left) > 0 {
				t.Errorf("%s: left behind: %v", text, left)
			}
		}
	}
}

// settings is the page that lists every setting.
const settings = "../../../../docs/reference/proxy.md"

// TestPageListsEverySetting: docs/reference/proxy.md has a row for each setting, with its default, and no other
// rows but those of a route. It names the settings that are flags.
func TestPageListsEverySetting(t *testing.T) {
	page := string(testkit.ReadFile(t, settings))
	listed := map[string]string{} // the text of the default
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9-]+)` \\| (?:(.*?) \\| )?.*\\|$").FindAllStringSubmatch(page, -1) {
		if _, twice := listed[m[1]]; twice {
			t.Errorf("%s is listed twice", m[1])
		}
		listed[m[1]] = m[2]
	}
	c, flags := defaults(), []string{}
	for _, s := range settingsOf(&c) {
		text, ok := listed[s.name]
		delete(listed, s.name)
		if !ok {
			t.Errorf("%s is not listed", s.name)
		} else if usual := s.text(); usual != "" && plain(strings.Trim(text, "`")) != plain(usual) {
			t.Errorf("the default of %s is %s; the page says %s", s.name, usual, text)
		}
		if s.tag.Get("flag") != "" {
			flags = append(flags, "`--"+s.name+"`")
		}
	}
	// The command adds config; a route has host and path.
	for _, name := range []string{"config", "host", "path"} {
		if _, ok := listed[name]; !ok {
			t.Errorf("%s is not listed", name)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("%s is listed, and there is no such setting", name)
	}
	last := len(flags) - 1
	if want := "These are flags, too: " + strings.Join(flags[:last], ", ") + " and " + flags[last] + "."; !strings.Contains(page, want) {
		t.Errorf("the page does not say: %s", want)
	}
}

// TestPageListsWhatNeedsARestart: docs/reference/proxy.md names the settings that a reload does not change.
func TestPageListsWhatNeedsARestart(t *testing.T) {
	page := testkit.ReadFile(t, settings)
	var fixed []string
	for _, s := range settingsOf(new(Config)) {
		if s.tag.Get("fixed") != "" {
			fixed = append(fixed, s.name)
		}
	}
	last := len(fixed) - 1
	if want := "- `" + strings.Join(fixed[:last], "`, `") + "` and `" + fixed[last] + "` need a restart."; !strings.Contains(string(page), want) {
		t.Errorf("the page does not say: %s", want)
	}
}

// plain returns a default in one of the ways in which it can be written.
func plain(s string) string {
	if d, err := time.ParseDuration(s); err == nil {
		return d.String()
	}
	if s == "on" {
		return "true"
	}
	return s
}

// TestPageExample: the configuration file of docs/reference/proxy.md can be read.
func TestPageExample(t *testing.T) {
	page := testkit.ReadFile(t, settings)
	example := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindStringSubmatch(string(page))
	if example == nil {
		t.Fatal("the page has no example")
	}
	c, err := load(t, example[1])
	testkit.Must(t, err)
	if n := strings.Count(example[1], "\n  - "); len(c.Routes) != n || n < 2 {
		t.Errorf("the example has %d routes; %d were read", n, len(c.Routes))
	}
}
