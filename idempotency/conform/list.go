package conform

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"strconv"
	"strings"
)

//go:embed list.md
var listHead string

// WriteList writes the published list, in Markdown: a line for each case. It uses no
// template package, because that makes the linker keep every method of a program.
func WriteList(w io.Writer) error {
	all := Cases()
	count := make(map[Level]int)
	for _, c := range all {
		count[c.Level]++
	}
	numbers := []string{"{{all}}", strconv.Itoa(len(all)), "{{outside}}", strconv.Itoa(outside(all))}
	for _, level := range Levels {
		numbers = append(numbers, "{{"+string(level)+"}}", strconv.Itoa(count[level]))
	}
	var b bytes.Buffer
	b.WriteString(strings.NewReplacer(numbers...).Replace(listHead))
	for _, section := range Sections() {
		fmt.Fprintf(&b, "\n## %s\n", section.Title)
		writeCases(&b, section.Cases)
	}
	writeProfiles(&b)
	_, err := w.Write(b.Bytes())
	return err
}

// writeProfiles writes what the profiles of APIs change.
func writeProfiles(b *bytes.Buffer) {
	for _, a := range apis {
		fmt.Fprintf(b, "\n## Profile `%s`: %s\n\nAnother request under the same key is refused with %d. ", a.profile, a.name, a.mismatch)
		if a.required {
			b.WriteString("A request without a key is refused. ")
		}
		if a.keeps5xx {
			b.WriteString("A 5xx answer is kept. ")
		}
		fmt.Fprintf(b, "Keys have no quotes. Left out: `%s`.\n", strings.Join(a.without, "`, `"))
		writeCases(b, a.rules)
	}
}

// writeCases writes a table of cases.
func writeCases(b *bytes.Buffer, cases []Case) {
	b.WriteString("\n| case | what holds | level | sources |\n|---|---|---|---|\n")
	for _, c := range cases {
		holds := c.Title
		if needs := c.Needs(); needs != "" {
			holds += ". Needs " + needs
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", c.ID, holds, c.Level, c.Cite())
	}
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
