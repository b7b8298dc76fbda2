package main

import (
	"os"
	"strings"
)

// tableHead begins each table of figures.
const tableHead = "| what | goal | median | min … max | absolute, for orientation |\n|---|---|---|---|---|\n"

// write puts what was measured in the place of the tables of the page, and says above each how it was
// measured. A table of which one comparison was not measured stays, because it is the table of one run.
func (r *report) write(page string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	parts := strings.Split(string(text), tableHead)
	for i := 1; i < len(parts); i++ {
		table, rest, _ := strings.Cut(parts[i], "\n\n")
		var rows []string
		for row := range strings.SplitSeq(table, "\n") {
			if measured := r.rows[nameOf(row)]; measured != "" {
				rows = append(rows, measured)
			}
		}
		if len(rows) <= strings.Count(table, "\n") {
			continue
		}
		above := strings.TrimSuffix(parts[i-1], "\n\n")
		parts[i-1] = above[:strings.LastIndex(above, "\n\n")+2] + r.head + "\n\n"
		parts[i] = strings.Join(rows, "\n") + "\n\n" + rest
	}
	return os.WriteFile(page, []byte(strings.Join(parts, tableHead)), 0o644)
}

// nameOf returns the name of the comparison whose row it is.
func nameOf(row string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
	return name
}
