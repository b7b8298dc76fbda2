package anystore

import "testing"

// TestDownHasACure: the error about a server that does not run says what to do.
func TestDownHasACure(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://app@127.0.0.1:1/app", "mysql://app@127.0.0.1:1/app", "redis://127.0.0.1:1", "redis+unix:///nowhere/socket",
		"postgres://app@127.0.0.1:1,127.0.0.1:2/app", "redis+sentinel://127.0.0.1:1/master", "redis+cluster://127.0.0.1:1",
		"http://127.0.0.1:1", "https://:token@127.0.0.1:1,127.0.0.1:2", "http+unix:/nowhere/socket",
	} {
		for _, open := range []func() error{
			func() error { _, err := Open(t.Context(), url, ToCheck); return err },
			func() error { _, err := Open(t.Context(), url, ToUse); return err },
		} {
			says(t, open(), "cannot be reached", "runs and listens at the address")
		}
	}
}
