package asynqjobs

import (
	"os"
	"strings"
	"testing"
)

// TestReadme: its code is that of the example, which is compiled and run.
func TestReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
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
	if n := strings.Count(string(readme), "\n"); n > 150 {
		t.Errorf("it has %d lines", n)
	}
}
