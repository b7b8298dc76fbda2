package anystore

import (
	"strings"
	"testing"
)

// TestDownHasACure: the error about a server that does not run says what to do.
func TestDownHasACure(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://app@127.0.0.1:1/app", "postgres://app@nowhere.invalid/app", "mysql://app@127.0.0.1:1/app", "redis://127.0.0.1:1", "redis+unix:///nowhere/socket",
		"postgres://app@127.0.0.1:1,127.0.0.1:2/app", "redis+sentinel://127.0.0.1:1/master", "redis+cluster://127.0.0.1:1",
		"http://127.0.0.1:1", "https://:token@127.0.0.1:1,127.0.0.1:2", "http+unix:/nowhere/socket",
	} {
		for _, open := range []func() error{
			func() error { _, err := Open(t.Context(), url, ToCheck); return err },
			func() error { _, err := Open(t.Context(), url, ToUse); return err },
		} {
			err := open()
			says(t, err, "cannot be reached", "runs and listens at the address, and that no firewall is in between)")
			if text := err.Error(); strings.ContainsAny(text, "\n\t") || strings.Count(text, "refused") > strings.Count(url, ":1")+strings.Count(url, ":2") {
				t.Errorf("the error is %q; want one line that says once of each address what is wrong", text)
			}
		}
	}
}
