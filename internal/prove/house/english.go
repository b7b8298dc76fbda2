package house

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// phrases are regular expressions, in small letters, of what a native reader stumbles on, and what to
// write. Each begins with a word, so that a search is quick. A space matches the end of a line, too,
// with the marks of a comment.
var phrases = []struct{ not, but string }{
	{`also (if|when|after|while|before)`, "even if, even when, even after, because the case is a surprise"},
	{`for ever`, "forever"},
	{`belongs? into`, "belong in"},
	{`an object of json`, "a JSON object"},
	{"lines? of (json|`?(debug|info|warn|error)`?)", "a JSON line, WARN lines"},
	{`end(s|ed)? with \d+`, "exits with 64"},
	{`may (have|hold) (at most )?\d\S* (bytes|kib|mib|members|fields|parts|elements)`, "can be at most 256 KiB"},
	{`as for`, "as with"},
	{`fault of (the|a) (file|store|proxy|test)`, "an error in the file; does not mean that the store is slow"},
	{`stand(s|ing)? still`, "pauses, is paused, stops"},
	{`stood still`, "paused, was paused, stopped"},
	{`one (line|byte|caller|waiter|option|step|statement|savepoint|time|row|call|trip) more`, "one more caller"},
	{`(it|that|this|which|what|and) is no [a-km-z]\w*`, "is not a file, because no is for what is not there"},
	{`goes on`, "continues, keeps serving"},
	{`has not the`, "does not have the"},
}

// English checks that no text file below the folder has one of the phrases.
func English(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case !d.Type().IsRegular() || d.Name() == "english.go" || d.Name() == "english_test.go":
			return nil
		}
		text, err := os.ReadFile(name)
		if err == nil && !bytes.ContainsRune(text, 0) {
			for _, found := range accents(string(text)) {
				t.Errorf("%s:%s", name, found)
			}
		}
		return err
	})
	testkit.Must(t, err)
}

// accents returns a line for each phrase in the text, with its line number and what to write.
func accents(text string) (found []string) {
	text = strings.ToLower(text)
	for i, expression := range expressions {
		for _, at := range expression.FindAllStringIndex(text, -1) {
			if at[0] > 0 && 'a' <= text[at[0]-1] && text[at[0]-1] <= 'z' {
				continue // the end of another word
			}
			line := 1 + strings.Count(text[:at[0]], "\n")
			found = append(found, fmt.Sprintf("%d: %q: write %s", line, text[at[0]:at[1]], phrases[i].but))
		}
	}
	return found
}

// expressions are the phrases, compiled.
var expressions = func() (all []*regexp.Regexp) {
	for _, p := range phrases {
		all = append(all, regexp.MustCompile(strings.ReplaceAll(p.not, " ", `(?: +|\s*\n[\s/#*-]*)`)+`\b`))
	}
	return all
}()
