package main

import (
	"bytes"
	"fmt"
	"os"
)

// Publish puts the tables between their marks in a page:
//
//	<!-- scale: NAME -->
//	<!-- end -->
//
// It returns an error when a table has no place there.
func Publish(page []byte, tables []Table) ([]byte, error) {
	for _, t := range tables {
		begin, end := fmt.Appendf(nil, "<!-- scale: %s -->\n", t.Name), []byte("<!-- end -->")
		before, rest, ok := bytes.Cut(page, begin)
		if !ok {
			return nil, fmt.Errorf("the page has no %q", bytes.TrimSpace(begin))
		}
		_, after, ok := bytes.Cut(rest, end)
		if !ok {
			return nil, fmt.Errorf("the page has no %q behind %q", end, bytes.TrimSpace(begin))
		}
		var table bytes.Buffer
		t.Markdown(&table)
		page = bytes.Join([][]byte{before, begin, table.Bytes(), end, after}, nil)
	}
	return page, nil
}

// publish renews the tables of a file.
func publish(path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if page, err = Publish(page, All()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, page, 0o644)
}
