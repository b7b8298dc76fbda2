package conform_test

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/idempotency/conform"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestList: the published page is the list.
func TestList(t *testing.T) {
	published := testkit.ReadFile(t, "../../docs/reference/conformance.md")
	var list bytes.Buffer
	testkit.Must(t, conform.WriteList(&list))
	if !bytes.Equal(published, list.Bytes()) {
		t.Error("docs/reference/conformance.md is not what the cases say: go run ./cmd/dibs-prove conform --list > docs/reference/conformance.md")
	}
}

// TestCases: every case says all of what it is, and is like no other.
func TestCases(t *testing.T) {
	all := conform.Cases()
	if len(all) < 100 {
		t.Errorf("there are %d cases", len(all))
	}
	seen := make(map[string]bool)
	for _, c := range all {
		switch {
		case !regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`).MatchString(c.ID) || len(c.ID) > 24:
			t.Errorf("%q is not a name of a case", c.ID)
		case seen[c.ID], seen[c.Title]:
			t.Errorf("%s: there is another one of that name or title", c.ID)
		case c.Title == "" || len(c.Sources) == 0:
			t.Errorf("%s does not say all: %+v", c.ID, c)
		case !slices.Contains(conform.Levels, c.Level):
			t.Errorf("%s has the level %q", c.ID, c.Level)
		case strings.HasSuffix(c.Title, ".") || strings.Contains(c.Title, "|"):
			t.Errorf("%s: a title is a cell of a table, without a full stop", c.ID)
		}
		seen[c.ID], seen[c.Title] = true, true
		for _, s := range c.Sources {
			if s.Text == "" || !strings.HasPrefix(s.URL, "https://") {
				t.Errorf("%s has the source %v", c.ID, s)
			}
		}
	}
}
