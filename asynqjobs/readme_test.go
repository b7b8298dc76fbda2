package asynqjobs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadme: its code is that of the example, which is compiled and run.
func TestReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	must(t, err)
	example, err := os.ReadFile("example_test.go")
	must(t, err)
	code := false
	lines := 0
	for line := range strings.Lines(string(readme)) {
		switch {
		case strings.HasPrefix(line, "```"):
			code = strings.HasPrefix(line, "```go")
		case code:
			lines++
			if !strings.Contains(string(example), line) {
				t.Errorf("the example does not have %q", line)
			}
		}
	}
	if lines == 0 {
		t.Error("it has no code")
	}
	if n := strings.Count(string(readme), "\n"); n > 80 {
		t.Errorf("it has %d lines; it is to be a page", n)
	}
	// Each promise of the table has its test.
	var tests strings.Builder
	files, err := filepath.Glob("*_test.go")
	must(t, err)
	for _, name := range files {
		b, err := os.ReadFile(name)
		must(t, err)
		tests.Write(b)
	}
	for _, name := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(readme), -1) {
		if !strings.Contains(tests.String(), "func "+name[1]+"(") {
			t.Errorf("there is no %s", name[1])
		}
	}
}
