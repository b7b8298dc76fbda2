package s3_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/stores/casstore/s3"
)

// TestParse: what a URL and the environment say, and what no URL may have.
func TestParse(t *testing.T) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"} {
		t.Setenv(name, "")
	}
	for text, want := range map[string]string{
		"s3://locks":  "s3://locks",
		"s3://locks/": "s3://locks",
		"s3://locks/shop?region=eu-central-1&tick=2s":   "s3://locks/shop/",
		"s3://locks/shop/a/?endpoint=https://s3.host:9": "s3://locks/shop/a/?endpoint=https://s3.host:9",
		"s3://locks?endpoint=http%3A%2F%2F127.0.0.1":    "s3://locks?endpoint=http://127.0.0.1",
	} {
		o, err := s3.Parse(text)
		if err != nil || o.String() != want {
			t.Errorf("%q is %v, %v; want %q", text, o, err, want)
		}
	}
	for text, want := range map[string]string{
		"s3:locks":                                  s3.Form,
		"s3:///locks":                               s3.Form,
		"s3://key:secret@locks":                     "remove what is before the @",
		"s3://l":                                    "is not the name of a bucket",
		"s3://Locks":                                "is not the name of a bucket",
		"s3://locks/a%20b":                          "printable ASCII",
		"s3://locks/" + strings.Repeat("a", 200):    "at most 200",
		"s3://locks?endpoint=host":                  "https://HOST or http://HOST",
		"s3://locks?endpoint=https://host/path":     "https://HOST or http://HOST",
		"s3://locks?endpoint=https://u:secret@host": "https://HOST or http://HOST",
		"s3://locks?tick=1":                         "it must be a duration",
		"s3://locks?tick=0s":                        "it must be a duration",
		"s3://locks?Region=x":                       `"Region" is unknown`,
	} {
		if _, err := s3.Parse(text); !errors.Is(err, s3.ErrURL) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want an ErrURL that says %q", text, err, want)
		}
	}
	t.Setenv("AWS_ENDPOINT_URL", "http://elsewhere")
	if o, err := s3.Parse("s3://locks"); err != nil || o.Endpoint != "http://elsewhere" || o.Region != "us-east-1" {
		t.Errorf("with an endpoint in the environment: %+v, %v", o, err)
	}
}
