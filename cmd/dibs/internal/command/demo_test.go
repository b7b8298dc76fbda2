//go:build nightly

package command_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestReadmeDemo: the demo prints what the README's recording shows. Of the numbers, only the double
// charges and the lost orders are compared.
func TestReadmeDemo(t *testing.T) {
	var recorded strings.Builder
	events := json.NewDecoder(bytes.NewReader(testkit.ReadFile(t, top+"/docs/pictures/demo.cast")))
	testkit.Must(t, events.Decode(&struct{}{}))
	for events.More() {
		var event [3]any // time, "o", text
		testkit.Must(t, events.Decode(&event))
		recorded.WriteString(event[2].(string))
	}
	want := recorded.String()
	out, err := exec.Command(binary, "demo", "--exit").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	number := regexp.MustCompile(`\$?[0-9][0-9.]*`)
	space := regexp.MustCompile(` +`)
	// The order of the crash is sent once only. It is charged once if the proxy was killed
	// before it arrived.
	lost := regexp.MustCompile(`\d updates? (is|are) lost`)
	alone := regexp.MustCompile(`(charged more than once +)149`)
	shape := func(text string) []string {
		var lines []string
		text = lost.ReplaceAllString(text, "N updates are lost")
		text = alone.ReplaceAllString(text, "${1}150")
		for line := range strings.Lines(strings.TrimSpace(text)) {
			if !strings.Contains(line, "charged more than once") && !strings.Contains(line, "orders lost") {
				line = number.ReplaceAllString(line, "N")
			}
			lines = append(lines, strings.TrimSpace(space.ReplaceAllString(line, " ")))
		}
		return lines
	}
	got, shown := shape(string(out)), shape(want)
	for i := range max(len(got), len(shown)) {
		if i >= len(got) || i >= len(shown) || got[i] != shown[i] {
			t.Fatalf("the demo prints\n%s\nthe README shows\n%s", out, want)
		}
	}
}
