//go:build nightly

package command_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestReader: a user that may only read can ls, show and doctor. dibs run and release say which
// right is missing.
func TestReader(t *testing.T) {
	t.Parallel()
	for name, reader := range map[string]func(*testing.T) (b *bench, asReader func()){
		"redis": func(t *testing.T) (*bench, func()) {
			server := servertest.Redis(t, &servertest.RedisOptions{Password: secret})
			return &bench{dir: t.TempDir(), store: server.URL()}, func() {
				server.Must("ACL", "SETUSER", "reader", "on", ">"+secret, "~dibs:*", "+@read", "+@connection")
			}
		},
		"postgres": func(t *testing.T) (*bench, func()) {
			b := newPostgresBench(t)
			schema := b.schema(t)
			return b, func() {
				sharedPostgres().Query("CREATE ROLE reader LOGIN PASSWORD '" + secret + "'; GRANT USAGE ON SCHEMA " + schema + " TO reader" +
					"; GRANT SELECT ON ALL TABLES IN SCHEMA " + schema + " TO reader")
			}
		},
		"mariadb": func(t *testing.T) (*bench, func()) {
			return newMariaDBBench(t), func() {
				sharedMariaDB().Query("CREATE USER reader@'127.0.0.1' IDENTIFIED BY '" + secret + "'")
				sharedMariaDB().Query("GRANT SELECT ON app.* TO reader@'127.0.0.1'")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, asReader := reader(t)
			b.says(t, 0, "", "", "run", "--once-per=1h", "k", "--", "true")
			asReader()
			u, err := url.Parse(b.store)
			testkit.Must(t, err)
			u.User = url.UserPassword("reader", secret)
			b.store = u.String()
			if code, stdout, stderr := b.run(t, "ls", "--state", "all"); code != 0 || !strings.HasPrefix(stderr, "store ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stdout, "k ") {
				t.Errorf("ls: %d, %q, %q", code, stdout, stderr)
			}
			if code, stdout, stderr := b.run(t, "show", "k"); code != 0 || stderr != "" || !strings.Contains(stdout, "done") {
				t.Errorf("show: %d, %q, %q", code, stdout, stderr)
			}
			// It exits with 1 because the server is not durable.
			if _, stdout, stderr := b.run(t, "doctor"); stderr != "" || !strings.Contains(stdout, "unchecked  rights: ") {
				t.Errorf("doctor: %q, %q", stdout, stderr)
			}
			for _, args := range [][]string{{"run", "j", "--", "touch", "ran"}, {"forget", "--yes", "k"}} {
				code, stdout, stderr := b.run(t, args...)
				if code != 69 || !strings.Contains(stderr, "GRANT ") && !strings.Contains(stderr, "ACL SETUSER") {
					t.Errorf("%v: %d, %q, %q", args, code, stdout, stderr)
				}
			}
			if b.exists("ran") {
				t.Error("it ran")
			}
		})
	}
}
