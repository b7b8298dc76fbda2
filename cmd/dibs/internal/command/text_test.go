package command

import (
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// FuzzCell: a cell shows the whole key, no other key has the same cell, and the cell does
// nothing to a terminal.
func FuzzCell(f *testing.F) {
	for _, s := range []string{"key", "key ", "", `"key"`, `a\nb`, "a\nb", "\xff", "\u202e", "\ufffd", "a  b", "\u00a0", "鍵"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := cell(s)
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
