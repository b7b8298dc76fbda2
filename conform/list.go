package conform

import (
	_ "embed"
	"fmt"
	"io"
	"strings"
	"text/template"
)

//go:embed list.md
var listText string

var list = template.Must(template.New("list").Parse(listText))

// WriteList writes the published list, in Markdown: one line for each case.
func WriteList(w io.Writer) error {
	count := make(map[string]int)
	all := Cases()
	for _, c := range all {
		count[string(c.Level)]++
	}
	return list.Execute(w, map[string]any{"All": len(all), "Count": count, "Sections": Sections()})
}

// Cite returns the sources of the case as links.
func (c Case) Cite() string {
	links := make([]string, len(c.Sources))
	for i, s := range c.Sources {
		links[i] = fmt.Sprintf("[%s](%s)", s.Text, s.URL)
	}
	return strings.Join(links, ", ")
}

// Needs returns what the target must be able to do before the case makes sense, or "".
func (c Case) Needs() string { return string(c.needs) }
