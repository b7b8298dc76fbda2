package anystore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestFromEnvironment: the URL of the store is in a variable, or in the file that another one names.
func TestFromEnvironment(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const url = "redis://:secret@host"
	good := file("good", url+"\n")
	for _, test := range []struct{ url, file, want, refused string }{
		{"", "", "", ""},
		{url, "", url, ""},
		{"", good, url, ""},
		{"", file("bare", url), url, ""},
		{"", file("windows", "\ufeff"+url+"\r\n\r\n"), url, ""},
		{url, good, url, ""},
		{url + "/1", good, "", "DIBS_STORE and the file of DIBS_STORE_FILE name different stores; unset one"},
		{"", filepath.Join(folder, "gone"), "", "DIBS_STORE_FILE: there is no file " + filepath.Join(folder, "gone")},
		{url, filepath.Join(folder, "gone"), "", "there is no file"},
		{"", file("empty", "\n"), "", "is empty"},
		{"", file("long", strings.Repeat("secret", maxURL)), "", "is longer than 65536 bytes"},
		{"", folder, "", "DIBS_STORE_FILE: "},
	} {
		got, err := FromEnvironment(func(name string) string {
			return map[string]string{"DIBS_STORE": test.url, "DIBS_STORE_FILE": test.file}[name]
		})
		if got != test.want || (err != nil) != (test.refused != "") {
			t.Errorf("%q and %q: %q, %v; want %q", test.url, test.file, got, err, test.want)
		}
		if err != nil && (!strings.Contains(err.Error(), test.refused) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%q and %q: %v; want %q", test.url, test.file, err, test.refused)
		}
	}
}
