// Package suggest finds what a misspelt name was meant to be.
package suggest

import (
	"fmt"
	"math"
	"strings"
)

// Name returns the name with the fewest edits from the misspelt one, and how many these are: bytes to
// insert, delete or replace, and neighbours to exchange. Of several the first counts. plain, unless nil, returns a name as it is
// compared. Without names, Name returns "" and math.MaxInt.
func Name(misspelt string, names []string, plain func(string) string) (name string, n int) {
	if plain == nil {
		plain = func(s string) string { return s }
	}
	n = math.MaxInt
	for _, each := range names {
		if m := edits(plain(misspelt), plain(each)); m < n {
			name, n = each, m
		}
	}
	return name, n
}

// maxEdits bounds the edits between a misspelt name and the one that Similar returns.
const maxEdits = 2

// Similar is Name, but returns "" unless the names are so similar that the one was meant for the other.
func Similar(misspelt string, names []string, plain func(string) string) string {
	name, n := Name(misspelt, names, plain)
	if n > maxEdits || 2*n >= len(misspelt) {
		return ""
	}
	return name
}

// NoneOf returns the error for a text that is none of some words: all of them, and the one that it was
// meant for. A word such as header:NAME is compared up to its colon.
func NoneOf(text string, words ...string) error {
	plain := func(s string) string {
		s, _, _ = strings.Cut(strings.ToLower(s), ":")
		return strings.NewReplacer("-", "", "_", "").Replace(s)
	}
	err := fmt.Errorf("%q is none of %s", text, strings.Join(words, ", "))
	if meant := Similar(text, words, plain); meant != "" {
		return fmt.Errorf("%w; did you mean %s?", err, meant)
	}
	return err
}

// edits counts the bytes to insert, delete or replace, and the neighbours to exchange, to make one
// text the other: the distance of optimal string alignment.
func edits(a, b string) int {
	var before []int // the row before the last one
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := []int{i + 1}
		for j := range len(b) {
			n := last[j]
			if a[i] != b[j] {
				n++
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				n = min(n, before[j-1]+1)
			}
			row = append(row, min(n, row[j]+1, last[j+1]+1))
		}
		before, last = last, row
	}
	return last[len(b)]
}
