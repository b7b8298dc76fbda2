package proxy

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// ringText returns the text of a ring with keys of n bytes.
func ringText(n int, ids ...string) string {
	var lines []string
	for _, id := range ids {
		lines = append(lines, id+":"+base64.StdEncoding.EncodeToString([]byte(strings.Repeat(id[:1], n))))
	}
	return strings.Join(lines, "\n") + "\n"
}

// ringFile returns a file with the text.
func ringFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ring")
	testkit.Must(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// encryptsWith returns the ID of the key that a policy encrypts answers with; "" if it does not.
func encryptsWith(p *Policy) string {
	id, _ := idempotency.EncryptedWith(p.options().KeyRing.Encrypt(dibs.Key{Name: "k"}, dibs.Fingerprint{}, 0, nil))
	return id
}

// TestKeyRing: the ring comes from a file or a variable. A route inherits it or has its own.
func TestKeyRing(t *testing.T) {
	t.Setenv("DIBS_TEST_RING", ringText(32, "variable", "old"))
	c, err := load(t, "upstream: http://x\nkey-ring: env:DIBS_TEST_RING\nroutes:\n  - path: /a\n  - path: /b\n    key-ring: "+ringFile(t, ringText(32, "file"))+"\n  - path: /c\n    key-ring: ''\n")
	testkit.Must(t, err)
	got := []string{encryptsWith(&c.Policy)}
	for i := range c.Routes {
		got = append(got, encryptsWith(&c.Routes[i].Policy))
	}
	if want := "variable variable file "; strings.Join(got, " ") != want {
		t.Errorf("encrypted with %q; want %q", got, want)
	}
	if c, err = load(t, "", "--upstream=http://x", "--key-ring=env:DIBS_TEST_RING"); err != nil || encryptsWith(&c.Policy) != "variable" {
		t.Errorf("by a flag: %v", err)
	}
	if c, err = load(t, "", "--upstream=http://x"); err != nil || encryptsWith(&c.Policy) != "" {
		t.Errorf("without a ring: %v", err)
	}
}

// TestBadKeyRing: the proxy does not start with a ring that is wrong.
func TestBadKeyRing(t *testing.T) {
	for _, test := range []struct{ source, want string }{
		{filepath.Join(t.TempDir(), "missing"), "openssl rand -base64 32"},
		{"env:DIBS_TEST_NO_RING", `no variable "DIBS_TEST_NO_RING"`},
		{ringFile(t, ""), "has no key"},
		{ringFile(t, ringText(16, "short")), `"short" has 16 bytes; it must have 32`},
		{ringFile(t, ringText(32, "a", "a")), `two keys with the ID "a"`},
	} {
		for name, load := range map[string]func() error{
			"flag": func() error { _, err := load(t, "", "--upstream=http://x", "--key-ring="+test.source); return err },
			"file": func() error { _, err := load(t, "upstream: http://x\nkey-ring: "+test.source+"\n"); return err },
		} {
			if err := load(); err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "key-ring") {
				t.Errorf("%s: %v; want key-ring and %s", name, err, test.want)
			}
		}
	}
}
