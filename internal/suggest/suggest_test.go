package suggest_test

import (
	"math"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/suggest"
)

func TestName(t *testing.T) {
	names := []string{"lease", "wait", "Keep"}
	for _, test := range []struct {
		misspelt, want string
		n              int
	}{
		{"leese", "lease", 1}, {"lease", "lease", 0}, {"", "wait", 4}, {"wiat", "wait", 1}, {"lesae", "lease", 1}, {"ewit", "wait", 2}, {"keeps", "Keep", 1}, {"leas", "lease", 1},
	} {
		if got, n := suggest.Name(test.misspelt, names, strings.ToLower); got != test.want || n != test.n {
			t.Errorf("%q: %s with %d edits; want %s with %d", test.misspelt, got, n, test.want, test.n)
		}
	}
	for misspelt, want := range map[string]string{"leese": "lease", "wiat": "wait", "waitt": "wait", "keeps": "Keep", "": "", "it": "", "nothing": ""} {
		if got := suggest.Similar(misspelt, names, strings.ToLower); got != want {
			t.Errorf("%q is similar to %q; want %q", misspelt, got, want)
		}
	}
	if got, n := suggest.Name("a", nil, nil); got != "" || n != math.MaxInt {
		t.Errorf("without names: %q, %d", got, n)
	}
}

func TestNoneOf(t *testing.T) {
	words := []string{"at-most-once", "header:NAME", "stripe"}
	for text, want := range map[string]string{
		"strip": "stripe", "Stripe": "stripe", "at_most_once": "at-most-once", "atmostonce": "at-most-once", "headers:X-Tenant": "header:NAME", "header": "header:NAME", "x": "", "": "",
	} {
		end := "none of at-most-once, header:NAME, stripe"
		if want != "" {
			end += "; did you mean " + want + "?"
		}
		if err := suggest.NoneOf(text, words...); !strings.HasSuffix(err.Error(), end) {
			t.Errorf("%q: %v; want %q", text, err, end)
		}
	}
}
