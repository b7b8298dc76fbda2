package conform

import (
	"net/http"
	"strings"
)

// malformedKeys are values of the field that are no key.
var malformedKeys = []struct {
	id, title, sent string
	level           Level
	sources         []Source
	lines           func(key string) []string
}{
	{
		"empty", "An empty key is refused", "a request whose Idempotency-Key is empty, and one whose key is an empty string.", Should,
		[]Source{draft("5"), rfc(9651, "4.2")},
		func(string) []string { return []string{"", `""`} },
	},
	{
		"unbalanced", "A key whose quotes are not closed is refused", `requests with "abc and abc" as their keys.`, Should,
		[]Source{draft("2.1"), draft("5"), rfc(9651, "4.2.5")},
		func(key string) []string { return []string{`"` + key, key + `"`} },
	},
	{
		"list", "A list of keys is refused", `requests with "a", "b" and a,b as their keys.`, Should,
		[]Source{draft("2.1"), draft("5"), rfc(9651, "4.2")},
		func(key string) []string { return []string{`"` + key + `", "b"`, key + ",b"} },
	},
	{
		"trailing", "A key with something after its quotes is refused", `requests with "abc" x and "abc"x as their keys.`, Should,
		[]Source{draft("2.1"), draft("5"), rfc(9651, "4.2")},
		func(key string) []string { return []string{`"` + key + `" x`, `"` + key + `"x`} },
	},
	{
		"escape", "A key with an escape that there is not is refused", `a request with "a\b" as its key.`, Should,
		[]Source{draft("5"), rfc(9651, "4.2.5")},
		func(key string) []string { return []string{`"` + key + `a\b"`} },
	},
	{
		"bare-space", "A key without quotes and with a space is refused", "a request with a b as its key.", Should,
		[]Source{draft("2.1"), solidgate},
		func(key string) []string { return []string{key + " b"} },
	},
	{
		"control", "A key with a control character is refused", "requests whose keys have a tab, a 0x01 and a 0x7f within.", Should,
		[]Source{draft("5"), rfc(9651, "3.3.3"), rfc(9110, "5.5")},
		func(key string) []string {
			return []string{`"` + key + "\tb\"", `"` + key + "\x01b\"", `"` + key + "\x7fb\""}
		},
	},
	{
		"non-ascii", "A key beyond ASCII is refused", "requests whose keys have a letter in UTF-8 and a byte 0xff within.", Should,
		[]Source{draft("5"), rfc(9651, "3.3.3")},
		func(key string) []string { return []string{`"` + key + `ü"`, `"` + key + "\xff\""} },
	},
	{
		"too-long", "A key of more than 255 characters is refused", "requests whose keys have 256 and 4000 characters.", Practice,
		[]Source{draft("5"), stripe, solidgate},
		func(key string) []string {
			return []string{`"` + key + strings.Repeat("x", 256-len(key)) + `"`, `"` + key + strings.Repeat("x", 4000-len(key)) + `"`}
		},
	},
}

// malformedCases makes a case of each, and those that are of another form.
func malformedCases() []Case {
	var all []Case
	for _, m := range malformedKeys {
		all = append(all, Case{
			ID: "malformed-" + m.id, Title: m.title, Level: m.level, Sources: m.sources, Sent: m.sent,
			Expected: "refused with 400: a key that cannot be read is not the same as none.",
			Ran:      "never",
			check: func(t *trial) {
				for _, line := range m.lines(t.key) {
					t.refused("the key "+excerpt([]byte(line)), t.send(withKey(line)), []int{http.StatusBadRequest})
				}
				t.ran(0)
			},
		})
	}
	return append(all, Case{
		ID: "malformed-lines", Title: "More than one line of the field is refused", Level: Should,
		Sources:  []Source{draft("2.1"), rfc(9651, "4.2")},
		Sent:     "a request with two lines of Idempotency-Key, with different keys, and one with the same key twice.",
		Expected: "refused with 400.",
		Ran:      "never",
		check: func(t *trial) {
			for _, second := range []string{t.numbered(2), t.quoted()} {
				t.refused("the request with two lines", t.send(with("Idempotency-Key", second)), []int{http.StatusBadRequest})
			}
			t.ran(0)
		},
	}, Case{
		ID: "malformed-problem", Title: "The refusal of a malformed key leads to documentation", Level: Should,
		Sources:  []Source{draft("2.7"), rfc(9457, "3.1")},
		Sent:     "a request whose key is an empty string.",
		Expected: "400 with a problem document, or with a Link of rel=describedby.",
		Ran:      "never",
		check: func(t *trial) {
			t.documented("the refusal", t.send(withKey(`""`)), []int{http.StatusBadRequest})
			t.ran(0)
		},
	})
}
