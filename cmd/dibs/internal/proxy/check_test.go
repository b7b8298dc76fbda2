package proxy

import (
	"fmt"
	"os"
	"path/filepath"
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
