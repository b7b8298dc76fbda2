package examples

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestGuides: the code of a guide is that of its package.
func TestGuides(t *testing.T) {
	t.Parallel()
	for guide, of := range map[string]struct {
		folder string
		pieces int
	}{"guides/frameworks.md": {"frameworks", 3}, "guides/testing-your-code.md": {"invoices", 4}, "guides/payment-provider.md": {"payment-provider", 1}, "reference/http.md": {"stripe", 1}} {
		files, err := filepath.Glob(of.folder + "/*.go")
		testkit.Must(t, err)
		var source strings.Builder
		for _, file := range files {
			source.WriteString(read(t, file))
		}
		blocks := regexp.MustCompile("(?ms)^```golang\n(.*?)^```$").FindAllStringSubmatch(read(t, "../docs/"+guide), -1)
		if len(blocks) != of.pieces {
			t.Errorf("%s has %d pieces of code; %s has %d", guide, len(blocks), of.folder, of.pieces)
		}
		for _, b := range blocks {
			if !strings.Contains(source.String(), b[1]) {
				t.Errorf("this piece of %s is not in %s:\n%s", guide, of.folder, b[1])
			}
		}
	}
}
