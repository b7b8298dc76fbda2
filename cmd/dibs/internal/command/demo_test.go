//go:build nightly

package command_test

import (
	"encoding/xml"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestReadmeDemo: the demo prints what the README's picture shows. Of the numbers, only the double
// charges and the lost orders are compared.
func TestReadmeDemo(t *testing.T) {
	var picture struct {
		Lines []string `xml:"text"`
	}
	testkit.Must(t, xml.Unmarshal(testkit.ReadFile(t, top+"/docs/pictures/demo.svg"), &picture))
	want := strings.Join(picture.Lines[1:], "\n") // without the prompt
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
			if line = strings.TrimSpace(space.ReplaceAllString(line, " ")); line != "" { // the picture has no empty lines
				lines = append(lines, line)
			}
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
