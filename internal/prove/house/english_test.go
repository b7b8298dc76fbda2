package house

import (
	"slices"
	"testing"
)

func TestAccents(t *testing.T) {
	for text, want := range map[string][]string{
		"It rises also if the clock steps.\n":                      {`1: "also if": write ` + phrases[0].but},
		"a\n\n// It waits for\n// ever.\n":                         {`3: "for\n// ever": write forever`},
		"Ends with 64. A run that ended with 3.":                   {`1: "ends with 64": write exits with 64`, `1: "ended with 3": write exits with 64`},
		"Each line is an object of JSON.":                          {`1: "an object of json": write a JSON object`},
		"lines of `WARN` belong into the log":                      {`1: "belong into": write belong in`, "1: \"lines of `warn\": write " + phrases[4].but},
		"the file may have 256 KiB":                                {`1: "may have 256 kib": write can be at most 256 KiB`},
		"as for every other command":                               {`1: "as for": write as with`},
		"It was for everybody, and ends with ErrLost.":             nil,
		"He also writes; forever; a line of code; what has forms.": nil,
	} {
		if got := accents(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestPhrasesHaveACure: what the table says to write has none of the phrases.
func TestPhrasesHaveACure(t *testing.T) {
	for _, p := range phrases {
		if found := accents(p.but); len(found) > 0 {
			t.Errorf("%q: %q", p.but, found)
		}
	}
}
