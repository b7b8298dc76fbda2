package check

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/proof/history"
)

// Verdict is the result of a check.
type Verdict struct {
	Keys       int            // histories that were checked, one for each key
	Operations int            // calls of the store, one for each element
	Unknown    int            // of them, those whose outcome is unknown
	Grants     int            // leases, each counted once
	Records    int            // records whose writing was acknowledged
	Replays    int            // claims that a record answered
	Sections   int            // that were entered
	Waits      int            // in a queue, whose order was checked
	Faults     map[string]int // how often each bit

	// Violations are what a correct store, client or application could not have done.
	Violations []Violation
	// Undecided says what could not be checked, and why. It is a failure too.
	Undecided []string

	index *index
}

// Violation is something that must not happen, with the events that show it.
type Violation struct {
	Name   string // of the rule; see Rules
	Key    string // "" if it is of none
	Text   string
	Events []history.Event
}

// Rules are the names of the rules, and what each says.
var Rules = map[string]string{
	"lease":      "the leases of a key are granted, renewed and ended as the contract says",
	"register":   "a record is written by its holder, and answers until it ends",
	"fences":     "fences rise with every grant of a key",
	"sections":   "no more sections of a key at once than it has permits",
	"overstayed": "a section ends with its lease",
	"effects":    "a transaction that is committed with its record happens once",
	"replies":    "a caller gets only what a holder had kept",
	"mismatch":   "a mismatch is answered only if another fingerprint was asked for",
	"held":       "a key is held only while a token holds it or waits for it",
	"order":      "tokens that wait together are granted in the order in which they came",
	"places":     "a reserved place stands until it ends",
	"progress":   "after the faults, everything moves on",
	"left":       "nothing is left behind",
}

// OK reports whether there is no violation, and everything was decided.
func (v *Verdict) OK() bool { return len(v.Violations) == 0 && len(v.Undecided) == 0 }

// maxEvents is how many events WriteText prints of one violation.
const maxEvents = 24

// WriteText writes the counts, and each violation with its events, for people.
func (v *Verdict) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d keys, %d operations, %d with unknown outcome\n", v.Keys, v.Operations, v.Unknown)
	fmt.Fprintf(&b, "%d grants, %d records, %d replays, %d sections, %d waits in order\n", v.Grants, v.Records, v.Replays, v.Sections, v.Waits)
	for _, name := range slices.Sorted(maps.Keys(v.Faults)) {
		fmt.Fprintf(&b, "fault %s bit %d times\n", name, v.Faults[name])
	}
	for _, x := range v.Violations {
		fmt.Fprintf(&b, "VIOLATION %s", x.Name)
		if x.Key != "" {
			fmt.Fprintf(&b, " of %q", x.Key)
		}
		fmt.Fprintf(&b, ": %s\n", x.Text)
		_ = x.WriteEvents(&b) // which takes everything
	}
	for _, u := range v.Undecided {
		fmt.Fprintf(&b, "UNDECIDED %s\n", u)
	}
	switch {
	case len(v.Violations) > 0:
		fmt.Fprintf(&b, "%d violations\n", len(v.Violations))
	case len(v.Undecided) > 0:
		b.WriteString("no violation was found, but not everything could be checked\n")
	default:
		b.WriteString("no violation\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteEvents writes the events that show the violation, one in a line, but not more than can be
// read.
func (x *Violation) WriteEvents(w io.Writer) error {
	for i := range x.Events {
		if i == maxEvents {
			_, err := fmt.Fprintf(w, "    and %d more\n", len(x.Events)-i)
			return err
		}
		if _, err := fmt.Fprintf(w, "    %s\n", describe(&x.Events[i])); err != nil {
			return err
		}
	}
	return nil
}

// describe returns an event in one line.
func describe(e *history.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v to ", e.Call)
	if e.Return == 0 {
		b.WriteString("?")
	} else {
		fmt.Fprint(&b, e.Return)
	}
	fmt.Fprintf(&b, " process %d.%d %s", e.Process, e.Restarts, e.Kind)
	for _, f := range []struct {
		name string
		x    any
		set  bool
	}{
		{"", e.Name, e.Name != ""}, {"", e.Mode, e.Mode != ""}, {"", e.Outcome, e.Outcome != ""},
		{"token", short(e.Token), e.Token != ""}, {"from", short(e.From), e.From != ""},
		{"permits", e.Permits, e.Permits > 1}, {"weight", e.Weight, e.Weight > 1}, {"ttl", e.TTL, e.TTL != 0}, {"place ttl", e.PlaceTTL, e.PlaceTTL != 0}, {"max age", e.MaxAge, e.MaxAge != 0},
		{"print", short(e.Fingerprint), e.Fingerprint != ""}, {"retention", e.Retention, e.Retention != 0},
		{"→", e.State, e.State != ""}, {"error", e.Error, e.Error != ""}, {"fence", e.Fence, e.Fence != 0},
		{"attempt", e.Attempt, e.Attempt != 0}, {"queued", e.Ahead, e.Queued}, {"data", e.Data, e.Data != ""},
		{"times", e.Times, e.Times != 0}, {"", e.Text, e.Text != ""},
	} {
		if !f.set {
			continue
		}
		if f.name != "" {
			b.WriteString(" " + f.name)
		}
		fmt.Fprintf(&b, " %v", f.x)
	}
	return b.String()
}
