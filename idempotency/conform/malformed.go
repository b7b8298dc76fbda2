package conform

import (
	"net/http"
	"strings"
)

// malformedKeys are values of the field that are not keys.
var malformedKeys = []struct {
	id, title string
	level     Level
	sources   []Source
	lines     func(key string) []string
}{
	{
		"empty", "An empty key is refused", Should,
		[]Source{draft("5"), rfc(9651, "4.2")},
		func(string) []string { return []string{"", `""`} },
	},
	{
		"unbalanced", "A key with an unclosed quote is refused", Should,
		[]Source{draft("2.1"), draft("5"), rfc(9651, "4.2.5")},
		func(key string) []string { return []string{`"` + key, key + `"`} },
	},
	{
		"list", "A list of keys is refused", Should,
		[]Source{draft("2.1"), draft("5"), rfc(9651, "4.2")},
		func(key string) []string { return []string{`"` + key + `", "b"`, key + ",b"} },
	},
	{
		"trailing", "A key with text after its closing quote is refused", Should,
		[]Source{draft("2.1"), draft("5"), rfc(9651, "4.2")},
		func(key string) []string { return []string{`"` + key + `" x`, `"` + key + `"x`} },
	},
	{
		"escape", "A key with an invalid escape is refused", Should,
		[]Source{draft("5"), rfc(9651, "4.2.5")},
		func(key string) []string { return []string{`"` + key + `a\b"`} },
	},
	{
		"bare-space", "A key without quotes and with a space is refused", Should,
		[]Source{draft("2.1"), solidgate},
		func(key string) []string { return []string{key + " b"} },
	},
	{
		"control", "A key with a control character is refused", Should,
		[]Source{draft("5"), rfc(9651, "3.3.3"), rfc(9110, "5.5")},
		func(key string) []string {
			return []string{`"` + key + "\tb\"", `"` + key + "\x01b\"", `"` + key + "\x7fb\""}
		},
	},
	{
		"non-ascii", "A key with a non-ASCII character is refused", Should,
		[]Source{draft("5"), rfc(9651, "3.3.3")},
		func(key string) []string { return []string{`"` + key + `ü"`, `"` + key + "\xff\""} },
	},
	{
		"too-long", "A key of more than 255 characters is refused", Practice,
		[]Source{draft("5"), stripe, solidgate},
		func(key string) []string {
			return []string{`"` + key + strings.Repeat("x", 256-len(key)) + `"`, `"` + key + strings.Repeat("x", 4000-len(key)) + `"`}
		},
	},
}

// malformedCases returns a case for each of them, and two others.
func malformedCases() []Case {
	var all []Case
	for _, m := range malformedKeys {
		all = append(all, Case{
			ID: "malformed-" + m.id, Title: m.title, Level: m.level, Sources: m.sources,
			check: func(t *trial) {
				for _, line := range m.lines(t.key) {
					t.refused("the key "+excerpt([]byte(line)), t.send(withKey(line)), []int{http.StatusBadRequest})
				}
				t.ran(0)
			},
		})
	}
	return append(all, should("malformed-lines", "More than one line of the field is refused", func(t *trial) {
		for _, second := range []string{t.numbered(2), t.quoted()} {
			t.refused("the request with two lines", t.send(with("Idempotency-Key", second)), []int{http.StatusBadRequest})
		}
		t.ran(0)
	}, draft("2.1"), rfc(9651, "4.2")), should("malformed-problem", "The refusal of a malformed key links to documentation", func(t *trial) {
		t.documented("the refusal", t.send(withKey(`""`)), []int{http.StatusBadRequest})
		t.ran(0)
	}, draft("2.7"), rfc(9457, "3.1")))
}
