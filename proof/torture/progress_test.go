package torture

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestLines: the lines of files that grow are each counted once, and a missing file counts for nothing.
func TestLines(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	var l lines
	for _, step := range []struct {
		name, text string
		want       int
	}{{one, "a\nb\n", 2}, {one, "", 2}, {one, "c\nhalf", 3}, {two, "d\n", 4}, {one, " more\n", 5}} {
		f, err := os.OpenFile(step.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		testkit.Must(t, err)
		_, err = f.WriteString(step.text)
		testkit.Must(t, err)
		testkit.Must(t, f.Close())
		if n := l.count([]string{one, two, filepath.Join(dir, "missing")}); n != step.want {
			t.Errorf("after %q: %d lines; want %d", step.text, n, step.want)
		}
	}
}
