package httpstore

import (
	"errors"
	"strings"
	"testing"
)

// TestParse: a URL is read as it is meant, or refused with what is wrong, and its token is
// never in a text.
func TestParse(t *testing.T) {
	for url, want := range map[string]string{
		"https://:S3cret@dibs.internal":       "https://dibs.internal",
		"https://:S3cret@a,b:8443,[::1]:7/":   "https://a,b:8443,[::1]:7",
		"https://:S3cret%40@a":                "https://a",
		"https://:S3cret@x@a":                 "https://a",
		"http://127.0.0.1:7331":               "http://127.0.0.1:7331",
		"http+unix:/run/dibs/dibs.sock":       "http+unix:/run/dibs/dibs.sock",
		"http+unix:///run/dibs/dibs.sock":     "http+unix:/run/dibs/dibs.sock",
		"https://user:S3cret@a":               "no user",
		"https://S3cret@a":                    "no user",
		"https://:@a":                         "no user",
		"https://:S3cret%zz@a":                "not an escape",
		"https://:S3cret@":                    "is not a host",
		"https://:S3cret@a,,b":                "is not a host",
		"https://:S3cret@a/path":              "a path or a parameter",
		"https://:S3cret@a?x=1":               "a path or a parameter",
		"https://:S3cret@a b":                 "is not a host",
		"http+unix:run/dibs/dibs.sock":        "an absolute path",
		"http+unix://host/run/dibs/dibs.sock": "an absolute path",
		"http+unix:/run/dibs/dibs.sock?x=1":   "an absolute path",
		"ftp://:S3cret@a":                     "must begin with",
		":S3cret@a":                           "must begin with",
	} {
		a, err := Parse(url)
		got := ""
		if err != nil {
			if got = err.Error(); !errors.Is(err, ErrURL) {
				t.Errorf("%s: %v is not an ErrURL", url, err)
			}
		} else {
			got = a.String()
		}
		if err == nil && got != want || err != nil && !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %s", url, got, want)
		}
		if strings.Contains(got, "S3cret") {
			t.Errorf("%s: the token is in %s", url, got)
		}
	}
	if a, err := Parse("https://:a%40%2Fb@host"); err != nil || a.secret != "a@/b" {
		t.Errorf("%+v, %v", a, err)
	}
}
