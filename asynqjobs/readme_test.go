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
	code := 0 // lines
	for i, part := range strings.Split(string(readme), "```") {
		if i%2 == 0 {
			continue // no code
		}
		for line := range strings.Lines(strings.TrimPrefix(part, "go\n")) {
			code++
			if !strings.Contains(string(example), line) {
				t.Errorf("the example does not have %q", line)
			}
		}
	}
	if n := strings.Count(string(readme), "\n"); n > 80 || code == 0 {
		t.Errorf("it has %d lines, and %d of code; it must be a page", n, code)
	}
	// Each promise of the table has its test.
	var tests []byte
	files, err := filepath.Glob("*_test.go")
	must(t, err)
	for _, name := range files {
		b, err := os.ReadFile(name)
		must(t, err)
		tests = append(tests, b...)
	}
	for _, name := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(readme), -1) {
		if !strings.Contains(string(tests), "func "+name[1]+"(") {
			t.Errorf("there is no %s", name[1])
		}
	}
}
