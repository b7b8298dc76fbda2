package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/proof/torture"
)

// results are the last result of each contender under each group of faults.
type results []result

// readResults reads the file of results. A missing file has none.
func readResults(file string) (all results, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	return all, err
}

// with returns the results with a new one in the place of the old one.
func (all results) with(r result) results {
	all = slices.DeleteFunc(all, func(o result) bool { return o.Contender == r.Contender && o.Group == r.Group })
	all = append(all, r)
	order := func(r result) (c, g int) {
		return slices.IndexFunc(contenders(), func(c contender) bool { return c.name == r.Contender }),
			slices.IndexFunc(groups, func(g group) bool { return g.name == r.Group })
	}
	slices.SortFunc(all, func(a, b result) int {
		ac, ag := order(a)
		bc, bg := order(b)
		return cmp.Or(ac-bc, ag-bg)
	})
	return all
}

// write writes the file of results, and puts the tables between the marks of the page.
func (all results) write(file, page string) error {
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return err
	}
	before, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(before), beginMark)
	_, tail, closed := strings.Cut(rest, endMark)
	if !ok || !closed {
		return fmt.Errorf("%s needs the lines %q and %q", page, beginMark, endMark)
	}
	return os.WriteFile(page, []byte(head+beginMark+"\n"+all.tables()+"\n"+endMark+tail), 0o644)
}

// The marks between which the tables are in the page.
const (
	beginMark = "<!-- make trial wrote what is between these marks. -->\n"
	endMark   = "<!-- The end of it. -->\n"
)

// tables returns a table of all contenders, and one of each with its runs.
func (all results) tables() string {
	var b strings.Builder
	b.WriteString("| lock | two holders | stuck | late writes | runs |\n|---|---|---|---|---:|\n")
	for _, c := range contenders() {
		if rs := all.of(c.name); len(rs) > 0 {
			fmt.Fprintf(&b, "| [%s](#%s) | %s | %s | %s | %d |\n", c.name, c.name, rs.holders(&c), rs.stuck(), rs.late(), len(rs))
		}
	}
	for _, c := range contenders() {
		rs := all.of(c.name)
		if len(rs) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n", c.name)
		if c.module != "" {
			fmt.Fprintf(&b, "`%s` %s, on ", c.module, version(c.module))
		} else {
			b.WriteString("On ")
		}
		fmt.Fprintf(&b, "%s. It promises: %s ([its documentation](%s)).", c.server, c.promises, c.link)
		if c.setUp != "" {
			fmt.Fprintf(&b, " Set up: %s.", c.setUp)
		}
		b.WriteString("\n\n| faults, and how often each had an effect | sections | found | passed by at most | again, in `proof/trial` |\n|---|---:|---|---:|---|\n")
		for _, r := range rs {
			fmt.Fprintf(&b, "| %s | %d | %s | %d | `%s` |\n", cmp.Or(strings.Join(r.Hits, ", "), "none"), r.Sections, r.found(&c), r.Overtaken, r.command(&c))
		}
	}
	return b.String()
}

// version returns the version of a module in this program.
func version(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == module {
				return m.Version
			}
		}
	}
	return ""
}

// of returns the results of a contender.
func (all results) of(name string) results {
	return slices.DeleteFunc(slices.Clone(all), func(r result) bool { return r.Contender != name })
}

// holders says under which faults there were two holders.
func (all results) holders(c *contender) string {
	var broke, said []string
	for _, r := range all {
		switch {
		case r.Overlaps == 0:
		case c.says[r.Group] != "":
			said = append(said, r.Group)
		default:
			broke = append(broke, r.Group)
		}
	}
	var parts []string
	if len(broke) > 0 {
		parts = append(parts, "**"+strings.Join(broke, ", ")+"**")
	}
	if len(said) > 0 {
		parts = append(parts, strings.Join(said, ", ")+": as documented")
	}
	return cmp.Or(strings.Join(parts, "; "), "never")
}

// stuck says under which faults a key or a caller was stuck.
func (all results) stuck() string {
	var keys, callers []string
	for _, r := range all {
		switch {
		case r.keyStuck():
			keys = append(keys, r.Group)
		case len(r.Stuck) > 0:
			callers = append(callers, r.Group)
		}
	}
	var parts []string
	if len(keys) > 0 {
		parts = append(parts, "a key: **"+strings.Join(keys, ", ")+"**")
	}
	if len(callers) > 0 {
		parts = append(parts, "a caller: **"+strings.Join(callers, ", ")+"**")
	}
	return cmp.Or(strings.Join(parts, "; "), "never")
}

// keyStuck reports whether new callers did not get a key.
func (r *result) keyStuck() bool {
	return slices.ContainsFunc(r.Stuck, func(s string) bool { return strings.Contains(s, torture.NewCaller) })
}

// late says what became of the writes of holders that had paused.
func (all results) late() string {
	n, refused, fenced := 0, 0, false
	for _, r := range all {
		n, refused, fenced = n+r.Late, refused+r.Refused, fenced || r.Fenced
	}
	switch {
	case n == 0 && refused == 0:
		return "none"
	case fenced:
		return fmt.Sprintf("%d holders; the fence refused %d writes", n, refused)
	}
	return fmt.Sprintf("%d holders; nothing refuses them", n)
}

// found says what one run found.
func (r *result) found(c *contender) string {
	var found []string
	if r.Overlaps > 0 {
		text := fmt.Sprintf("**two holders** %d times (after %s)", r.Overlaps, strings.Join(r.After, ", "))
		if says := c.says[r.Group]; says != "" {
			text = fmt.Sprintf("two holders %d times (after %s), as documented: %s", r.Overlaps, strings.Join(r.After, ", "), says)
		}
		found = append(found, text)
	}
	if r.keyStuck() {
		found = append(found, "**a stuck key**: "+r.Stuck[0])
	} else if len(r.Stuck) > 0 {
		found = append(found, fmt.Sprintf("**a lost wake-up**: %d callers waited on, although new callers got the key", len(r.Stuck)))
	}
	if r.Late > 0 {
		text := fmt.Sprintf("%d holders wrote late", r.Late)
		if r.Fenced {
			text += fmt.Sprintf("; the fence refused %d writes", r.Refused)
		} else {
			text += ", and nothing refused it"
		}
		found = append(found, text)
	} else if r.Refused > 0 {
		found = append(found, fmt.Sprintf("the fence refused %d writes", r.Refused))
	}
	return cmp.Or(strings.Join(found, "; "), "kept")
}

// line is the result for people at a terminal.
func (r *result) line(c *contender) string {
	return fmt.Sprintf("%s, %s: %s. %d sections, passed by at most %d; %s. Again with: %s",
		r.Contender, r.Group, r.found(c), r.Sections, r.Overtaken, cmp.Or(strings.Join(r.Hits, ", "), "no faults"), r.command(c))
}

// command repeats the run.
func (r *result) command(c *contender) string {
	return fmt.Sprintf("go run "+c.tags+". -only %s -faults %s -seed %d", r.Contender, r.Group, r.Seed)
}
