package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestPage: the tables of docs/scale.md are those of the models.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/scale.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Publish(page, All())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page, want) {
		t.Error("docs/scale.md has other tables than the models; `go run ./scale -page ../docs/scale.md` in proof renews them")
	}
	for _, broken := range []string{"", "<!-- scale: each -->\n"} {
		if _, err := Publish([]byte(broken), All()); err == nil {
			t.Errorf("the tables were put into %q", broken)
		}
	}
}

// TestProgram: what is printed is what was asked for.
func TestProgram(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want []string // what is printed, or said of what is wrong
		bad  bool
	}{
		"all":           {nil, []string{"What one costs", "10 000 processes", "How far a server goes"}, false},
		"markdown":      {[]string{"-markdown"}, []string{"| claim and release |", "|---|---:|"}, false},
		"a fleet":       {[]string{"-processes", "500", "-requests", "3"}, []string{"500 processes", "calls, for requests: 1 500"}, false},
		"no processes":  {[]string{"-processes", "0"}, []string{"-processes is 0"}, true},
		"a short lease": {[]string{"-ttl", "1ms"}, []string{"-ttl is 1ms"}, true},
		"too many":      {[]string{"-duplicates", "2"}, []string{"-duplicates is 2"}, true},
		"no key":        {[]string{"-key", "0"}, []string{"-key is 0"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := run(test.args, &out)
			said := out.String()
			if test.bad {
				if err == nil {
					t.Fatal("nothing is said to be wrong")
				}
				said = err.Error()
			} else if err != nil {
				t.Fatal(err)
			}
			for _, want := range test.want {
				if !strings.Contains(said, want) {
					t.Errorf("%q is missing in:\n%s", want, said)
				}
			}
		})
	}
}
