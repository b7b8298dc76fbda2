package house

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// Readme checks that the module's README has each of the texts and is not longer than that many
// lines, and that each test that it names is there. It returns the README.
func Readme(t *testing.T, most int, want ...string) string {
	t.Helper()
	readme := read(t, "README.md")
	for _, text := range want {
		if !strings.Contains(readme, text) {
			t.Errorf("README.md does not have %q", text)
		}
	}
	if n := strings.Count(readme, "\n"); n > most {
		t.Errorf("README.md has %d lines; at most %d", n, most)
	}
	files, err := filepath.Glob("*_test.go")
	testkit.Must(t, err)
	tests := read(t, files...)
	for _, name := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(readme, -1) {
		if !strings.Contains(tests, "func "+name[1]+"(") {
			t.Errorf("README.md names %s, which is not there", name[1])
		}
	}
	return readme
}

// ReadmeRuns checks that the code of the README is that of example_test.go, which is compiled
// and run.
func ReadmeRuns(t *testing.T) {
	t.Helper()
	example := read(t, "example_test.go")
	lines := 0
	for i, part := range strings.Split(read(t, "README.md"), "```") {
		if i%2 == 0 {
			continue // no code
		}
		for line := range strings.Lines(strings.TrimPrefix(part, "go\n")) {
			lines++
			if !strings.Contains(example, line) {
				t.Errorf("the example does not have %q", line)
			}
		}
	}
	if lines == 0 {
		t.Error("README.md has no code")
	}
}

func read(t *testing.T, names ...string) string {
	t.Helper()
	var text strings.Builder
	for _, name := range names {
		b := testkit.ReadFile(t, name)
		text.Write(b)
	}
	return text.String()
}
