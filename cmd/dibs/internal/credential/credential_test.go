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
	"time"

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
		"":                                  "has no token",
		"a b c":                             "line 1: it has 3 columns",
		good + "\na b c d e":                "line 2: it has 5 columns",
		"a secret - use":                    "64 hexadecimal digits",
		credentialLine("a", "", "-", "use"): "the SHA-256 of no text at all",
		strings.ToUpper(credentialLine("a", "", "-", "use")): "the SHA-256 of no text at all",
		good + "\n" + good:                          "line 2: its name or its digest",
		credentialLine("a", "t", "-", "root"):       "a role is use, look or act",
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

// TestTheEmptyTokenIsNobodys: a request without a token has no credential, whatever digests there are.
func TestTheEmptyTokenIsNobodys(t *testing.T) {
	all := []*Credential{{Name: "a", digest: sha256.Sum256(nil)}}
	if c := Find(all, ""); c != nil {
		t.Errorf("the empty token is that of %s", c.Name)
	}
}

// TestEveryNamespace: * is every namespace, and - is the one without a name.
func TestEveryNamespace(t *testing.T) {
	all, err := Read(tokensFile(t, credentialLine("a", "one", "*", "look")+"\n"+credentialLine("b", "two", "-", "look")+"\n"+credentialLine("c", "three", "shop", "look")))
	testkit.Must(t, err)
	if all[0].Only() != nil || *all[1].Only() != "" || *all[2].Only() != "shop" {
		t.Errorf("the namespaces are %v, %v and %v", all[0].Only(), all[1].Only(), all[2].Only())
	}
}

// TestSession: a session is of its credential, until it is over, at every server with the file. It
// does not have the token, and is not the token.
func TestSession(t *testing.T) {
	file := tokensFile(t, credentialLine("a", "one", "-", "look")+"\n"+credentialLine("b", "two", "-", "look"))
	all, err := Read(file)
	testkit.Must(t, err)
	now := time.Unix(1_800_000_000, 0)
	session := all[1].Session(now)
	other, err := Read(file)
	testkit.Must(t, err)
	found := func(session string, after time.Duration) string {
		if c := FindSession(other, session, now.Add(after)); c != nil {
			return c.Name
		}
		return ""
	}
	if strings.Contains(session, "two") || strings.Contains(session, fmt.Sprintf("%x", sha256.Sum256([]byte("two")))) || Find(other, session) != nil {
		t.Errorf("the session %s is a token, or has one", session)
	}
	at, signed, _ := strings.Cut(session, ".")
	later, _, _ := strings.Cut(all[1].Session(now.Add(time.Second)), ".")
	for _, test := range []struct {
		session string
		after   time.Duration
		want    string
	}{
		{session, 0, "b"}, {session, SessionFor - 1, "b"}, {session, SessionFor, ""}, {session, -time.Hour, ""}, {session, -30 * time.Second, "b"},
		{"", 0, ""}, {at, 0, ""}, {at + ".", 0, ""}, {"." + signed, 0, ""}, {later + "." + signed, 0, ""}, {session + "x", 0, ""}, {"two", 0, ""},
	} {
		if got := found(test.session, test.after); got != test.want {
			t.Errorf("%q after %v is of %q; want %q", test.session, test.after, got, test.want)
		}
	}
	changed, err := Read(tokensFile(t, credentialLine("b", "new", "-", "look")))
	testkit.Must(t, err)
	if c := FindSession(changed, session, now); c != nil {
		t.Error("a session outlives its token")
	}
}
