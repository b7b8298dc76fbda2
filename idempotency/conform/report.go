package conform

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Outcome is the outcome of a case.
type Outcome string

// The outcomes of a case.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped" // it was not run; that says nothing about the target
	// NotJudged: the answers of a service alone do not show it. It was not run.
	NotJudged Outcome = "not-judged"
)

// Result is the result of one case.
type Result struct {
	Case    Case
	Outcome Outcome
	Saw     []string // Failed: what was seen and should not have been
	Why     string   // Skipped, NotJudged: why
	Took    time.Duration
}

// Report is the result of a run.
type Report struct {
	Target  string
	Profile Profile
	Name    string // of the run, in the paths of its requests
	Took    time.Duration
	Results []Result // in the order of Cases
}

// Count returns how many cases of the levels had the outcome. No level means all.
func (r *Report) Count(outcome Outcome, levels ...Level) int {
	n := 0
	for i := range r.Results {
		c := &r.Results[i]
		if c.Outcome == outcome && (len(levels) == 0 || slices.Contains(levels, c.Case.Level)) {
			n++
		}
	}
	return n
}

// Conforms reports whether no case failed that must pass, and at least one passed. It says nothing of
// the cases that were not judged.
func (r *Report) Conforms() bool { return r.Count(Failed, Must) == 0 && r.Count(Passed) > 0 }

// Line returns the result as a line of text. A failed case has more lines, with what was seen.
func (r *Result) Line() string {
	mark := map[Outcome]string{Passed: "pass", Failed: "FAIL", Skipped: "skip", NotJudged: "----"}[r.Outcome]
	var b strings.Builder
	fmt.Fprintf(&b, "%-4s  %-9s  %-22s  %s", mark, r.Case.Level, r.Case.ID, r.Case.Title)
	if r.Why != "" {
		b.WriteString(": " + r.Why)
	}
	b.WriteByte('\n')
	for _, saw := range r.Saw {
		b.WriteString("      " + saw + "\n")
	}
	return b.String()
}

// Summary returns the last line of a report.
func (r *Report) Summary() string {
	var failed []string
	for _, level := range Levels {
		if n := r.Count(Failed, level); n > 0 {
			failed = append(failed, fmt.Sprintf("%d %s", n, level))
		}
	}
	text := fmt.Sprintf("%s, profile %s: %d passed, %d failed", r.Target, r.Profile, r.Count(Passed), r.Count(Failed))
	if len(failed) > 0 {
		text += " (" + strings.Join(failed, ", ") + ")"
	}
	text += fmt.Sprintf(", %d skipped", r.Count(Skipped))
	if n := r.Count(NotJudged); n > 0 {
		text += fmt.Sprintf(", %d not judged (%d must)", n, r.Count(NotJudged, Must))
	}
	return text + fmt.Sprintf(", in %v", r.Took.Round(100*time.Millisecond))
}

// WriteText writes a line for each case, the summary, and a line with the cases that failed and
// must pass, if there are any.
func (r *Report) WriteText(w io.Writer) error {
	return r.writeText(w, func(*Result) bool { return true })
}

// WriteFailed is WriteText without the cases that passed, were skipped or were not judged.
func (r *Report) WriteFailed(w io.Writer) error {
	return r.writeText(w, func(c *Result) bool { return c.Outcome == Failed })
}

func (r *Report) writeText(w io.Writer, shown func(*Result) bool) error {
	var b strings.Builder
	var failed []string
	for i := range r.Results {
		c := &r.Results[i]
		if shown(c) {
			b.WriteString(c.Line())
		}
		if c.Outcome == Failed && c.Case.Level == Must {
			failed = append(failed, c.Case.ID)
		}
	}
	b.WriteString(r.Summary() + "\n")
	if len(failed) > 0 {
		b.WriteString("failed, and must pass: " + strings.Join(failed, ", ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// resultJSON is a result for programs.
type resultJSON struct {
	ID      string   `json:"id"`
	Title   string   `json:"title"`
	Level   Level    `json:"level"`
	Outcome Outcome  `json:"outcome"`
	Saw     []string `json:"saw,omitempty"`
	Why     string   `json:"why,omitempty"`
	TookMS  int64    `json:"took_ms"`
}

// summaryJSON is the last line for programs.
type summaryJSON struct {
	Target     string  `json:"target"`
	Profile    Profile `json:"profile"`
	Run        string  `json:"run"`
	Conforms   bool    `json:"conforms"`
	Passed     int     `json:"passed"`
	Failed     int     `json:"failed"`
	FailedMust int     `json:"failed_must"`
	Skipped    int     `json:"skipped"`
	NotJudged  int     `json:"not_judged"`
	TookMS     int64   `json:"took_ms"`
}

// WriteJSON writes one object a line: the cases, then the summary.
func (r *Report) WriteJSON(w io.Writer) error {
	var b bytes.Buffer
	out := json.NewEncoder(&b)
	out.SetEscapeHTML(false)
	for i := range r.Results {
		c := &r.Results[i]
		if err := out.Encode(resultJSON{
			ID: c.Case.ID, Title: c.Case.Title, Level: c.Case.Level, Outcome: c.Outcome,
			Saw: c.Saw, Why: c.Why, TookMS: c.Took.Milliseconds(),
		}); err != nil {
			return err
		}
	}
	err := out.Encode(summaryJSON{
		Target: r.Target, Profile: r.Profile, Run: r.Name, Conforms: r.Conforms(),
		Passed: r.Count(Passed), Failed: r.Count(Failed), FailedMust: r.Count(Failed, Must), Skipped: r.Count(Skipped), NotJudged: r.Count(NotJudged),
		TookMS: r.Took.Milliseconds(),
	})
	if err != nil {
		return err
	}
	_, err = w.Write(b.Bytes())
	return err
}

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
