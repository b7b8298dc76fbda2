package visible

import (
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// FuzzText: what is shown of a key shows all of it, stands for that key alone,
// and does nothing to a terminal.
func FuzzText(f *testing.F) {
	for _, s := range []string{"key", "key ", "", `"key"`, `a\nb`, "a\nb", "\xff", "\u202e", "\ufffd", "a  b", "\u00a0", "鍵"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		for _, r := range got {
			if !unicode.IsPrint(r) {
				t.Errorf("%q is shown with %U in it", s, r)
			}
		}
		if strings.TrimSpace(got) != got || got == "" {
			t.Errorf("%q is shown as %q, which ends out of sight", s, got)
		}
		back := got
		if strings.HasPrefix(got, `"`) {
			var err error
			if back, err = strconv.Unquote(got); err != nil {
				t.Fatalf("%q is shown as %s: %v", s, got, err)
			}
		}
		if back != s {
			t.Errorf("%q is shown as %s, which stands for %q", s, got, back)
		}
	})
}
