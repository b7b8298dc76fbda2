package gocronlock_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/testkit"
)

// TestReadme: the code of the README is that of the example, which is compiled and run, and
// each test that it names is there.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	testkit.Must(t, err)
	example, err := os.ReadFile("example_test.go")
	testkit.Must(t, err)
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
	if n := strings.Count(string(readme), "\n"); n > 60 || code == 0 {
		t.Errorf("it has %d lines, and %d of code; want at most 60 lines", n, code)
	}
	var tests []byte
	files, err := filepath.Glob("*_test.go")
	testkit.Must(t, err)
	for _, name := range files {
		b, err := os.ReadFile(name)
		testkit.Must(t, err)
		tests = append(tests, b...)
	}
	for _, name := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(readme), -1) {
		if !strings.Contains(string(tests), "func "+name[1]+"(") {
			t.Errorf("there is no %s", name[1])
		}
	}
}
