package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestConfigCheck: config check exits with 0 for a file that the proxy takes. Otherwise it exits
// with 64 and the faults that the proxy finds when it starts.
func TestConfigCheck(t *testing.T) {
	t.Chdir(t.TempDir())
	tests := []struct {
		text string
		want string // the faults; "" for none
	}{
		{"upstream: http://127.0.0.1:3000\nstore: sqlite:/x.db\nlog-format: json\nlog-level: warn\n", ""},
		{"upstream: http://x\nleese: 3s\nstore: mongo://h\n",
			`dibs.yaml:2:1: unknown field "leese"; did you mean "lease"?` + "\n" + `dibs.yaml:3:1: store: not the URL of a store: the scheme "mongo" is unknown`},
		{"listen: :80\n", "upstream: it is missing"},
	}
	for _, test := range tests {
		testkit.Must(t, os.WriteFile("dibs.yaml", []byte(test.text), 0o600))
		code, stdout, stderr := call(t, nil, "config", "check", "dibs.yaml")
		if test.want == "" {
			if code != 0 || stdout != "dibs.yaml: no faults\n" || stderr != "" {
				t.Errorf("%q: %d %q %q; want 0 and no faults", test.text, code, stdout, stderr)
			}
			continue
		}
		if code != 64 || stdout != "" || !strings.HasPrefix(stderr, test.want) || strings.Contains(stderr, "dibs config check") {
			t.Errorf("%q: %d %q %q; want 64 and %q", test.text, code, stdout, stderr, test.want)
		}
		code, stdout, stderr = call(t, nil, "proxy", "--config", "dibs.yaml")
		if code != 64 || stdout != "" || !strings.HasPrefix(stderr, "dibs proxy: "+test.want) {
			t.Errorf("the proxy with %q: %d %q %q; want 64 and %q", test.text, code, stdout, stderr, test.want)
		}
	}
	if code, stdout, stderr := call(t, map[string]string{"DIBS_PROXY_UPSTREAM": "http://x"}, "config", "check", "dibs.yaml"); code != 0 {
		t.Errorf("with the upstream in the environment: %d %q %q; want 0", code, stdout, stderr)
	}
	if left, _ := filepath.Glob("*.db"); len(left) != 0 {
		t.Errorf("there are files now: %v", left)
	}
	for _, args := range []string{"config check", "config check a b", "config chek dibs.yaml", "config check missing.yaml"} {
		if code, stdout, _ := call(t, nil, strings.Fields(args)...); code != 64 || stdout != "" {
			t.Errorf("dibs %s: %d %q; want 64", args, code, stdout)
		}
	}
	if _, _, stderr := call(t, nil, "config", "check", "missing.yaml"); !strings.HasPrefix(stderr, "there is no file missing.yaml; make one: printf 'upstream: http://127.0.0.1:3000") {
		t.Errorf("a file that is not there: %q", stderr)
	}
}
