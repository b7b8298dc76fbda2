package riverjobs

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestReadme: the code in the README is that of the example, which runs.
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
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	runs := squeeze(string(example))
	// What the README has more, or leaves out.
	differs := regexp.MustCompile(`^(_, )?err :?= |:= pgstore\.New|err :?= |_, err := (riverjobs\.InsertTx|tx\.Exec)|riverjobs\.Tagged|func \(w \*Worker\)|return err$|\}\)?$|$`)
	in := false
	for line := range strings.Lines(string(readme)) {
		line = squeeze(line)
		if strings.HasPrefix(line, "```") {
			in = !in
		} else if in && !differs.MatchString(line) && !strings.Contains(runs, line) {
			t.Errorf("the example does not have %q", line)
		}
	}
	for _, want := range []string{"riverjobs.InsertTx(ctx, client, tx, Message{Conversation: 7", "riverjobs.Tagged[Message](turns)", "turns.Close()", "riverjobs.Commit(ctx, job,"} {
		if !strings.Contains(string(readme), want) || !strings.Contains(string(example), want) {
			t.Errorf("not both have %q", want)
		}
	}
	if n := strings.Count(string(readme), "\n"); n > 100 {
		t.Errorf("it has %d lines", n)
	}
}
