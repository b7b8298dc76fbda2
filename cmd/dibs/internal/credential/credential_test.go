//go:build unix

package credential

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// tokensFile writes a file of credentials.
func tokensFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tokens")
	testkit.Must(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func credentialLine(name, token, namespace, roles string) string {
	return fmt.Sprintf("%s %x %s %s", name, sha256.Sum256([]byte(token)), namespace, roles)
}

// TestFind: a token finds its credential, with its roles, and no other.
func TestFind(t *testing.T) {
	all, err := Read(tokensFile(t, credentialLine("a", "one", "-", "use,act")+"\n"+credentialLine("b", "two", "shop", "look")))
	testkit.Must(t, err)
	if c := Find(all, "two"); c == nil || c.Name != "b" || c.Namespace != "shop" || !c.May(Look) || c.May(Act) {
		t.Errorf("the second token is %+v", c)
	}
	for _, token := range []string{"", "on", "one ", "three"} {
		if c := Find(all, token); c != nil {
			t.Errorf("%q is the token of %s", token, c.Name)
		}
	}
}

// TestWrongFiles: the error names the line and what is wrong, and quotes nothing.
func TestWrongFiles(t *testing.T) {
	good := credentialLine("a", "t", "-", "use")
	for text, want := range map[string]string{
		"":                                    "has no token",
		"a b c":                               "line 1: it has 3 columns",
		good + "\na b c d e":                  "line 2: it has 5 columns",
		"a secret - use":                      "64 hexadecimal digits",
		good + "\n" + good:                    "line 2: its name or its digest",
		credentialLine("a", "t", "-", "root"): "a role is use, look or act",
		credentialLine("a", "t", "n\u00e4h", "use"): "not printable ASCII",
	} {
		_, err := Read(tokensFile(t, text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret ") {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
	if all, err := Read(tokensFile(t, "\ufeff"+good)); err != nil || len(all) != 1 {
		t.Errorf("with a byte order mark: %v", err)
	}
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("a folder was read")
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	testkit.Must(t, exec.Command("mkfifo", pipe).Run())
	if _, err := Read(pipe); err == nil {
		t.Error("a pipe was read")
	}
}
