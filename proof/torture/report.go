package torture

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report says what came of a run.
type Report struct {
	Store     string `json:"store"` // its URL as it may be printed
	Seed      uint64 `json:"seed"`
	Repeat    string `json:"repeat"` // the command that repeats the run
	Workers   int    `json:"workers"`
	Processes int    `json:"processes"` // how many processes there were, one after the other

	Took        Duration `json:"took"`     // from the first strike to the verdict
	Checking    Duration `json:"checking"` // of that, the check
	Interrupted bool     `json:"interrupted,omitempty"`

	Faults  []*Strikes `json:"faults"`
	Crashes int        `json:"crashes"` // of workers, at places of their own choice
	Freezes int        `json:"freezes"` // of workers, beyond their leases, before a write
	Absent  []Absent   `json:"absent"`  // faults that were wanted and do not apply

	Events     int `json:"events"`     // in the history
	Keys       int `json:"keys"`       // histories, one for each key
	Operations int `json:"operations"` // that a store was asked for
	Unknown    int `json:"unknown"`    // operations of which nobody heard what became of them
	Grants     int `json:"grants"`
	Records    int `json:"records"`
	Replays    int `json:"replays"`
	Writes     int `json:"writes"`  // that the guarded resources were asked to take
	Refused    int `json:"refused"` // of these, because of a higher fence
	Effects    int `json:"effects"` // of transactions, committed

	ClockSet   int      `json:"clockSet,omitempty"` // how often the host's clock was set meanwhile
	Thawed     int      `json:"thawed"`             // keys that a step of the server's clock had frozen, and that were released by force
	Swept      int      `json:"swept"`              // keys that were had in the calm
	Stuck      []string `json:"stuck"`              // keys that were not
	Violations []string `json:"violations"`         // of what a store promises
	Undecided  []string `json:"undecided"`          // what the check did not get done
	Left       []string `json:"left"`               // keys, goroutines and connections left behind
	Broken     []string `json:"broken"`             // what went wrong with the harness itself
	Dir        string   `json:"dir,omitempty"`      // where the histories are, if they are kept

	verdict *verdict
}

// Strikes is what one fault did in a run.
type Strikes struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	About    string   `json:"about"`
	Evidence string   `json:"evidence"`          // what counts as one
	Forgets  bool     `json:"forgets,omitempty"` // the store may forget what it acknowledged
	Strikes  int      `json:"strikes"`
	Hits     int      `json:"hits"`
	Errors   []string `json:"errors,omitempty"` // why it could not strike
}

// Absent is a fault that does not apply, and why.
type Absent struct {
	Name  string `json:"name"`
	Why   string `json:"why"`
	Asked bool   `json:"asked,omitempty"` // for by its very name
}

// Duration is a time.Duration that is written as people read it.
type Duration time.Duration

// MarshalText writes it as "1.5s".
func (d Duration) MarshalText() ([]byte, error) {
	return []byte(time.Duration(d).Round(time.Millisecond).String()), nil
}

func (d Duration) String() string { return time.Duration(d).Round(time.Millisecond).String() }

// fill fills the report in.
func (r *run) fill(v *verdict, events int, checking time.Duration, interrupted bool) {
	c, out := r.workers, r.report
	c.mu.Lock()
	defer c.mu.Unlock()
	out.verdict = v
	out.Store, out.Seed, out.Workers, out.Processes = r.Shown, r.Seed, r.Workers, len(c.files)
	out.Repeat = r.repeat()
	out.Took, out.Checking, out.Interrupted = Duration(time.Since(r.began)), Duration(checking), interrupted
	out.Faults, out.Crashes, out.Freezes = r.strikes, c.crashes, c.freezes
	out.Events = events
	out.Writes, out.Refused, out.Effects = c.writes, c.refused, r.remains.effects
	out.Thawed = r.remains.thawed
	out.Swept, out.Stuck, out.Broken, out.Undecided = c.swept, c.stuck, c.broken, v.Undecided
	v.count(out)
	for _, violation := range v.Violations {
		out.Violations = append(out.Violations, fmt.Sprintf("%s, key %s: %s", violation.Name, violation.Key, violation.Text))
	}
	out.Left = slices.Clone(r.remains.keys)
	for _, e := range c.ended {
		if e.Goroutines > 0 {
			out.Left = append(out.Left, fmt.Sprintf("%d goroutines of a worker:\n%s", e.Goroutines, e.Stacks))
		}
		if len(e.Files) > 0 {
			out.Left = append(out.Left, "files and connections of a worker: "+strings.Join(e.Files, ", "))
		}
		out.Broken = append(out.Broken, e.Errors...)
	}
	if r.remains.unlisted != "" {
		out.Broken = append(out.Broken, r.remains.unlisted)
	}
	for _, s := range r.strikes {
		out.Broken = append(out.Broken, s.Errors...)
	}
	if !r.temporary || !out.OK() {
		out.Dir = r.Dir
	}
}

// repeat is the command that does the same again.
func (r *run) repeat() string {
	var b strings.Builder
	fmt.Fprintf(&b, "dibs torture --store '%s' --seed %d --duration %v --workers %d", r.Shown, r.Seed, r.Duration, r.Workers)
	if r.TTL != DefaultTTL {
		fmt.Fprintf(&b, " --lease %v", r.TTL)
	}
	if r.Faults != "" {
		fmt.Fprintf(&b, " --faults %s", r.Faults)
	}
	return b.String()
}

// OK reports whether everything that is promised held, and whether that says something:
// nothing is undecided, and every fault bit.
func (r *Report) OK() bool { return len(r.Failures()) == 0 }

// Failures returns why a run does not count as passed, in a few words each. That a fault
// did not hit says nothing of a run that was interrupted.
func (r *Report) Failures() []string {
	var why []string
	for _, f := range []struct {
		n    int
		what string
	}{
		{len(r.Violations), "violations"},
		{len(r.Stuck), "keys out of reach in the calm"},
		{len(r.Left), "things left behind"},
		{len(r.Undecided), "questions undecided"},
		{len(r.Broken), "troubles of the harness"},
	} {
		if f.n > 0 {
			why = append(why, fmt.Sprintf("%s: %d", f.what, f.n))
		}
	}
	for _, s := range r.Faults {
		if s.Hits == 0 && !r.Interrupted {
			why = append(why, "the fault "+s.Name+" never bit")
		}
	}
	for _, a := range r.Absent {
		if a.Asked {
			why = append(why, "the fault "+a.Name+", which was asked for, does not apply")
		}
	}
	return why
}

// kinds is how many kinds of faults bit.
func (r *Report) kinds() (n int) {
	for _, s := range r.Faults {
		if s.Hits > 0 {
			n++
		}
	}
	return n
}

// Hits is how often all faults bit.
func (r *Report) Hits() (n int) {
	for _, s := range r.Faults {
		n += s.Hits
	}
	return n + r.Crashes + r.Freezes
}

// Broke reports whether a promise was broken, or nobody can out that it was not.
func (r *Report) Broke() bool {
	return len(r.Violations)+len(r.Stuck)+len(r.Left)+len(r.Undecided) > 0
}

// WriteJSON writes the report as one object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "FAULT\tSTRIKES\tBITES\tA BITE IS\n")
	for _, s := range r.Faults {
		name := s.Name
		if s.Forgets {
			name += " *"
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", name, s.Strikes, s.Hits, s.Evidence)
	}
	if r.Crashes > 0 {
		fmt.Fprintf(t, "crash\t%d\t%d\ta worker killed itself in the middle of what it did\n", r.Crashes, r.Crashes)
	}
	if r.Freezes > 0 {
		fmt.Fprintf(t, "freeze\t%d\t%d\ta worker stood still beyond its lease, just before a write\n", r.Freezes, r.Freezes)
	}
	t.Flush()
	if slices.ContainsFunc(r.Faults, func(s *Strikes) bool { return s.Forgets }) {
		fmt.Fprintln(w, "* The store may forget there what it acknowledged; fences rise all the same.")
	}
	if len(r.Absent) > 0 {
		fmt.Fprintln(w)
		for _, a := range r.Absent {
			fmt.Fprintf(w, "not %s: %s\n", a.Name, a.Why)
		}
	}
	fmt.Fprintf(w, `
%d workers in %d lives, %d events of %d keys: %d operations, of which %d had an unknown outcome;
%d grants, %d records, %d replays; %d writes with fences, of which %d were refused;
%d effects in transactions; %d keys had again in the calm. Checked in %v.
`, r.Workers, r.Processes, r.Events, r.Keys, r.Operations, r.Unknown, r.Grants, r.Records, r.Replays, r.Writes, r.Refused, r.Effects, r.Swept, r.Checking)
	if r.ClockSet > 0 {
		fmt.Fprintf(w, "The host's clock was set %d times meanwhile; leases from before such a step count no more.\n", r.ClockSet)
	}
	if r.Thawed > 0 {
		fmt.Fprintf(w, "%d keys were held by the dead until the server's clock would have caught up, and were released by force.\n", r.Thawed)
	}
	for _, part := range r.Parts() {
		for i, line := range part.Lines {
			if i == maxLines {
				fmt.Fprintf(w, "%s: and %d more\n", part.Title, len(part.Lines)-i)
				break
			}
			fmt.Fprintf(w, "%s: %s\n", part.Title, line)
			if part.Title == violated && r.verdict != nil && i < len(r.verdict.Violations) {
				if err := r.verdict.Violations[i].WriteEvents(w); err != nil {
					return err
				}
			}
		}
	}
	fmt.Fprintln(w)
	if failures := r.Failures(); len(failures) > 0 {
		fmt.Fprintf(w, "FAILED: %s. The history is in %s\n", strings.Join(failures, "; "), r.Dir)
	} else {
		if r.Interrupted {
			fmt.Fprint(w, "Interrupted, so far ")
		}
		fmt.Fprintf(w, "0 violations, with %d faults of %d kinds that bit.\n", r.Hits(), r.kinds())
	}
	_, err := fmt.Fprintf(w, "seed %d; again with: %s\n", r.Seed, r.Repeat)
	return err
}

// violated is the title of the violations.
const violated = "violation"

// Part is one kind of what is wrong in a report.
type Part struct {
	Title string
	Lines []string
}

// Parts returns all that is wrong, the worst first.
func (r *Report) Parts() []Part {
	return []Part{
		{violated, r.Violations}, {"stuck", r.Stuck}, {"left behind", r.Left},
		{"undecided", r.Undecided}, {"trouble", r.Broken},
	}
}

// maxLines is how many lines of one kind are written; all are in JSON.
const maxLines = 20
