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
	"time"

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
	return append(all, r).sorted()
}

// sorted returns the results in the order of the page.
func (all results) sorted() results {
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
			fmt.Fprintf(&b, "| [%s](#%s) | %s | %s | %s | %d |\n", c.name, c.name, rs.holders(&c), rs.stuck(&c), rs.late(), len(rs))
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
		fmt.Fprintf(&b, "%s. Promised: %s ([source](%s)).", c.server, c.promises, c.link)
		if c.setUp != "" {
			fmt.Fprintf(&b, " Set up: %s.", c.setUp)
		}
		b.WriteString(c.documented())
		var kept []string
		var sections, overtaken int // of the runs that kept it
		begun := false
		for _, r := range rs {
			found := r.found(&c)
			if found == nothing {
				kept = append(kept, r.again())
				sections, overtaken = sections+r.Sections, max(overtaken, r.Overtaken)
				continue
			}
			if !begun {
				b.WriteString("\n\n| faults | hits | sections | found | passed by at most |\n|---|---|---:|---|---:|\n")
				begun = true
			}
			fmt.Fprintf(&b, "| %s | %s | %d | %s | %d |\n", r.again(), r.hits(), r.Sections, found, r.Overtaken)
		}
		if !begun {
			b.WriteString("\n")
		}
		if len(kept) > 0 {
			fmt.Fprintf(&b, "\nKept under %s: %d sections, passed by at most %d.\n", strings.Join(kept, ", "), sections, overtaken)
		}
	}
	return b.String()
}

// documented says under which faults its documentation expects two holders, and why.
func (c *contender) documented() string {
	var why []string
	under := map[string][]string{}
	for _, g := range groups {
		if says := c.says[g.name]; says != "" {
			if under[says] == nil {
				why = append(why, says)
			}
			under[says] = append(under[says], g.name)
		}
	}
	var b strings.Builder
	for _, says := range why {
		fmt.Fprintf(&b, " Documented for %s: %s.", strings.Join(under[says], ", "), says)
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
func (all results) stuck(c *contender) string {
	var keys, callers []string
	for _, r := range all {
		switch {
		case r.keyStuck() && c.says[r.Group] != "":
			keys = append(keys, r.Group+" (as documented)")
		case r.keyStuck():
			keys = append(keys, "**"+r.Group+"**")
		case len(r.Stuck) > 0:
			callers = append(callers, "**"+r.Group+"**")
		}
	}
	var parts []string
	if len(keys) > 0 {
		parts = append(parts, "a key: "+strings.Join(keys, ", "))
	}
	if len(callers) > 0 {
		parts = append(parts, "a caller: "+strings.Join(callers, ", "))
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
		return count(n, "holder") + "; the fence refused " + count(refused, "write")
	}
	return count(n, "holder") + "; nothing refuses them"
}

// found says what one run found. What is not documented is bold.
func (r *result) found(c *contender) string {
	mark, documented := "**", ""
	if c.says[r.Group] != "" {
		mark, documented = "", ", as documented"
	}
	var found []string
	if r.Overlaps > 0 {
		found = append(found, fmt.Sprintf("%stwo holders%s %s (after %s)%s", mark, mark, count(r.Overlaps, "time"), strings.Join(r.After, ", "), documented))
	}
	if r.keyStuck() {
		found = append(found, mark+"a stuck key"+mark+", which no new caller got"+documented)
	} else if len(r.Stuck) > 0 {
		found = append(found, fmt.Sprintf("**a lost wake-up**: %s waited on, although new callers got the key", count(len(r.Stuck), "caller")))
	}
	switch {
	case r.Late > 0 && !r.Fenced:
		found = append(found, count(r.Late, "late writer")+", not refused")
	case r.Late > 0:
		found = append(found, count(r.Late, "late writer"))
		fallthrough
	case r.Refused > 0:
		found = append(found, "the fence refused "+count(r.Refused, "write"))
	}
	return cmp.Or(strings.Join(found, "; "), nothing)
}

// nothing is what a run without a finding found.
const nothing = "kept"

// hits lists how often each fault had an effect.
func (r *result) hits() string {
	had := slices.DeleteFunc(slices.Clone(r.Hits), func(hit string) bool { return strings.HasSuffix(hit, " 0") })
	return cmp.Or(strings.Join(had, ", "), "none")
}

// count is a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// line is the result for people at a terminal.
func (r *result) line(c *contender) string {
	return fmt.Sprintf("%s, %s: %s. %d sections, passed by at most %d; %s. Again with: %s",
		r.Contender, r.Group, r.found(c), r.Sections, r.Overtaken, r.hits(), r.command())
}

// again names the faults of the run, and how it differs from the page's command.
func (r *result) again() string {
	again := r.Group
	if r.Seed != 1 {
		again += fmt.Sprint(" -seed ", r.Seed)
	}
	if d := time.Duration(r.Seconds) * time.Second; d != defaultDuration {
		again += fmt.Sprint(" -duration ", d)
	}
	return again
}

// command repeats the run.
// command repeats the run.
func (r *result) command() string {
	again := fmt.Sprintf("go run . -only %s -faults %s -seed %d", r.Contender, r.Group, r.Seed)
	if d := time.Duration(r.Seconds) * time.Second; d != defaultDuration {
		again += fmt.Sprint(" -duration ", d)
	}
	return again
}
