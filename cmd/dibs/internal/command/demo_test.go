//go:build nightly

package command_test

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/testkit"
)

// TestReadmeDemo: the README's first command prints the table that the README shows. Of the
// numbers, only the double charges and the lost orders are compared.
func TestReadmeDemo(t *testing.T) {
	page := testkit.ReadFile(t, readme)
	_, rest, ok := strings.Cut(string(page), "go run ./cmd/dibs demo\n```\n\n```\n")
	want, _, ended := strings.Cut(rest, "\n```")
	if !ok || !ended {
		t.Fatal("the README does not show what the demo prints")
	}
	out, err := exec.Command(binary, "demo", "--exit").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	number := regexp.MustCompile(`\$?[0-9][0-9.]*`)
	space := regexp.MustCompile(` +`)
	// The order of the crash is sent once only. It is charged once if the proxy was killed
	// before it arrived.
	alone := regexp.MustCompile(`(charged more than once +)149`)
	shape := func(text string) []string {
		var lines []string
		text = alone.ReplaceAllString(text, "${1}150")
		for line := range strings.Lines(strings.TrimSpace(text)) {
			if !strings.Contains(line, "charged more than once") && !strings.Contains(line, "orders lost") {
				line = number.ReplaceAllString(line, "N")
			}
			lines = append(lines, strings.TrimSpace(space.ReplaceAllString(line, " ")))
		}
		return lines
	}
	_, table, _ := strings.Cut(string(out), "of the proxies is killed with -9.")
	_, table, _ = strings.Cut(table, "\n\n")
	got, shown := shape(table), shape(want)
	for i := range max(len(got), len(shown)) {
		if i >= len(got) || i >= len(shown) || got[i] != shown[i] {
			t.Fatalf("the demo prints\n%s\nthe README shows\n%s", out, want)
		}
	}
}
