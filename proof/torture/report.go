package torture

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/history"
)

// Report is the result of a run.
type Report struct {
	Store     string `json:"store"` // its URL as it may be printed
	Seed      uint64 `json:"seed"`
	Repeat    string `json:"repeat"` // the command that repeats the run
	Workers   int    `json:"workers"`
	Processes int    `json:"processes"` // of all workers; a killed one is started again

	Took        Duration `json:"took"`     // from the first strike to the end of the check
	Checking    Duration `json:"checking"` // the check alone
	Interrupted bool     `json:"interrupted,omitempty"`

	Faults  []*Strikes `json:"faults"`
	Crashes int        `json:"crashes"` // of workers, by themselves
	Freezes int        `json:"freezes"` // of workers, by themselves, for longer than their leases
	Absent  []Absent   `json:"absent"`  // wanted faults that do not apply

	Events     int `json:"events"`     // in the history
	Keys       int `json:"keys"`       // in the history
	Operations int `json:"operations"` // of the store
	Unknown    int `json:"unknown"`    // operations with an unknown outcome
	Grants     int `json:"grants"`
	Records    int `json:"records"`
	Replays    int `json:"replays"`
	Writes     int `json:"writes"`  // to fenced resources, with a fence
	Refused    int `json:"refused"` // writes with a lower fence than an earlier one
	Effects    int `json:"effects"` // in committed transactions

	ClockSet   int      `json:"clockSet,omitempty"` // how often the host's clock was set
	Stale      int      `json:"stale"`              // keys that were released by force after a step of the server's clock
	Swept      int      `json:"swept"`              // keys that were acquired again in the recovery
	Stuck      []string `json:"stuck"`              // keys that were not acquired again
	Violations []string `json:"violations"`         // broken promises of the store
	Undecided  []string `json:"undecided"`          // what the check could not decide
	Left       []string `json:"left"`               // keys, goroutines and connections left behind
	Broken     []string `json:"broken"`             // errors of the harness itself
	Dir        string   `json:"dir,omitempty"`      // the folder of the histories, if they are kept

	Locks *check.Locks `json:"locks,omitempty"` // of a Locker

	verdict *verdict
}

// Strikes is what one fault did in a run.
type Strikes struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	About    string   `json:"about"`
	Evidence string   `json:"evidence"`          // what shows a hit
	Forgets  bool     `json:"forgets,omitempty"` // the store may forget what it acknowledged
	Strikes  int      `json:"strikes"`
	Hits     int      `json:"hits"`
	Errors   []string `json:"errors,omitempty"` // of strikes
}

// Absent is a fault that does not apply, and the reason.
type Absent struct {
	Name  string `json:"name"`
	Why   string `json:"why"`
	Asked bool   `json:"asked,omitempty"` // Options.Faults names it
}

// Duration is a time.Duration that is written for people.
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
	out.Stale = r.remains.stale
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

// repeat returns the command that does the same again.
func (r *run) repeat() string {
	var b strings.Builder
	fmt.Fprintf(&b, "dibs-prove torture --store '%s' --seed %d --duration %v --workers %d", r.Shown, r.Seed, r.Duration, r.Workers)
	if r.TTL != DefaultTTL {
		fmt.Fprintf(&b, " --lease %v", r.TTL)
	}
	if r.Faults != "" {
		fmt.Fprintf(&b, " --faults %s", r.Faults)
	}
	return b.String()
}

// OK reports whether the run passed: no promise was broken, everything was decided, and every
// fault hit.
func (r *Report) OK() bool { return len(r.Failures()) == 0 }

// Failures returns why the run did not pass, in a few words each. A fault that did not hit is no
// failure of an interrupted run.
func (r *Report) Failures() []string {
	var why []string
	for _, f := range []struct {
		n    int
		what string
	}{
		{len(r.Violations), "violations"},
		{len(r.Stuck), "keys not acquired again"},
		{len(r.Left), "things left behind"},
		{len(r.Undecided), "undecided"},
		{len(r.Broken), "errors of the harness"},
	} {
		if f.n > 0 {
			why = append(why, fmt.Sprintf("%s: %d", f.what, f.n))
		}
	}
	for _, s := range r.Faults {
		if s.Hits == 0 && !r.Interrupted {
			why = append(why, "the fault "+s.Name+" never hit")
		}
	}
	for _, a := range r.Absent {
		if a.Asked {
			why = append(why, "the fault "+a.Name+" was asked for and does not apply")
		}
	}
	return why
}

// kinds returns how many kinds of faults hit.
func (r *Report) kinds() (n int) {
	for _, s := range r.Faults {
		if s.Hits > 0 {
			n++
		}
	}
	return n
}

// Hits returns how often faults hit, with the crashes and freezes of the workers.
func (r *Report) Hits() (n int) {
	for _, s := range r.Faults {
		n += s.Hits
	}
	return n + r.Crashes + r.Freezes
}

// Broke reports whether a promise was broken, or could not be checked.
func (r *Report) Broke() bool {
	return len(r.Violations)+len(r.Stuck)+len(r.Left)+len(r.Undecided) > 0
}

// WriteJSON writes the report as one object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes the report for people: the result first, then what is wrong, then what was done.
func (r *Report) WriteText(w io.Writer) error {
	if failures := r.Failures(); len(failures) > 0 {
		fmt.Fprintf(w, "FAILED: %s. The history is in %s\n", strings.Join(failures, "; "), r.Dir)
	} else {
		if r.Interrupted {
			fmt.Fprint(w, "Interrupted; so far ")
		}
		fmt.Fprintf(w, "0 violations, with %d hits by %d kinds of faults.\n", r.Hits(), r.kinds())
	}
	fmt.Fprintf(w, "seed %d; again with: %s\n\n", r.Seed, r.Repeat)
	if err := r.writeWrongs(w); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "FAULT\tSTRIKES\tHITS\tEVIDENCE OF A HIT\n")
	for _, s := range r.Faults {
		name := s.Name
		if s.Forgets {
			name += " *"
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", name, s.Strikes, s.Hits, s.Evidence)
	}
	if r.Crashes > 0 {
		fmt.Fprintf(t, "crash\t%d\t%d\ta worker killed itself between two steps\n", r.Crashes, r.Crashes)
	}
	if r.Freezes > 0 {
		fmt.Fprintf(t, "freeze\t%d\t%d\ta worker paused until its lease had ended, and then wrote\n", r.Freezes, r.Freezes)
	}
	t.Flush()
	if slices.ContainsFunc(r.Faults, func(s *Strikes) bool { return s.Forgets }) {
		fmt.Fprintln(w, "* The store may lose there what it acknowledged. Fences must rise all the same.")
	}
	fmt.Fprintf(w, `
%d workers in %d processes, %d events of %d keys: %d operations, %d of them with an unknown outcome;
%d grants, %d records, %d replays; %d writes with fences, %d of them refused;
%d effects in transactions; %d keys acquired again after the last fault. Checked in %v.
`, r.Workers, r.Processes, r.Events, r.Keys, r.Operations, r.Unknown, r.Grants, r.Records, r.Replays, r.Writes, r.Refused, r.Effects, r.Swept, r.Checking)
	if r.ClockSet > 0 {
		fmt.Fprintf(w, "The host's clock was set %d times. Leases from before such a step were not checked.\n", r.ClockSet)
	}
	if r.Stale > 0 {
		fmt.Fprintf(w, "%d keys of dead holders were released by force, because the server's clock had been ahead when they were granted.\n", r.Stale)
	}
	if len(r.Absent) == 0 {
		return nil
	}
	// By the reason, because many faults have the same one.
	fmt.Fprintf(w, "\nThese faults do not apply:\n")
	for i, a := range r.Absent {
		same := func(b Absent) bool { return b.Why == a.Why }
		if slices.IndexFunc(r.Absent, same) < i {
			continue
		}
		var names []string
		for _, b := range r.Absent[i:] {
			if same(b) {
				names = append(names, b.Name)
			}
		}
		fmt.Fprintf(w, "  %s: %s\n", strings.Join(names, ", "), a.Why)
	}
	return nil
}

// writeWrongs writes what was found, at most maxLines of a kind.
func (r *Report) writeWrongs(w io.Writer) error {
	wrote := false
	for _, part := range []struct {
		title string
		lines []string
	}{
		{"violation", r.Violations}, {"stuck", r.Stuck}, {"left behind", r.Left}, {"undecided", r.Undecided}, {"harness", r.Broken},
	} {
		for i, line := range part.lines {
			if i == maxLines {
				fmt.Fprintf(w, "%s: and %d more\n", part.title, len(part.lines)-i)
				break
			}
			wrote = true
			fmt.Fprintf(w, "%s: %s\n", part.title, line)
			if part.title == "violation" && r.verdict != nil && i < len(r.verdict.Violations) {
				if err := r.verdict.Violations[i].WriteEvents(w); err != nil {
					return err
				}
			}
		}
	}
	if wrote {
		fmt.Fprintln(w)
	}
	return nil
}

// maxLines bounds how many lines of one kind WriteText writes. WriteJSON writes all.
const maxLines = 20

// verdict is the result of the check.
type verdict struct{ check.Verdict }

// subscribeDelay is how long a process may take to subscribe to another shard of a Redis
// Cluster. After a failover it may take twice as long.
const subscribeDelay = 3 * time.Second

// electing is how long after a failover an etcd may answer that a request timed out: a request waits for
// 5 s and two elections.
const electing = 10 * time.Second

// reaction is how late a section may end, because the machine may pause for a second. The
// simulation checks it exactly.
const reaction = 2 * time.Second

// movesTime reports whether the workers move the time of the store of that URL.
func movesTime(url string) bool {
	return strings.HasPrefix(url, "s3:") || strings.HasPrefix(url, "etcd:")
}

// lateTicks is how many ticks later a place of a waiter may end in a store whose workers move the
// time: five because of the time, and ten and a quarter for each of up to 20 places, which casstore
// adds. A lease has five.
const lateTicks, tick = 20, 100 * time.Millisecond

// late is how much later a lease or a place may end. Under faults that keep workers from the store,
// the time stands meanwhile: for up to five faults in a row, each for up to two leases.
func late(url string, faults []*fault.Fault, ttl time.Duration) time.Duration {
	switch {
	case !movesTime(url):
		return 0
	case slices.ContainsFunc(faults, func(f *fault.Fault) bool { return f.Name != "server-clock" }):
		return lateTicks*tick + 10*ttl
	}
	return lateTicks * tick
}

// judge checks the history of a run with these faults, on the store of that URL.
func judge(events []history.Event, faults []*fault.Fault, left []string, url string, ttl time.Duration) *verdict {
	o := &check.Options{Left: left, Reaction: reaction}
	scheme, _, _ := strings.Cut(url, ":")
	if strings.HasSuffix(scheme, "+cluster") {
		o.SubscribeDelay, o.Settling = subscribeDelay, 2*subscribeDelay
	}
	o.Late = late(url, faults, ttl)
	if scheme != "sqlite" { // which goes by the time since boot
		o.Forgets = append(o.Forgets, clockSet)
	}
	for _, f := range faults {
		if f.Forgets {
			o.Forgets = append(o.Forgets, f.Name)
		}
		if f.Name == "failover" && scheme == "etcd" {
			o.Settling = electing
		}
		if f.Stale {
			o.Stale = append(o.Stale, f.Name)
		}
		if f.Kind == fault.Worker {
			o.Workers = append(o.Workers, f.Name)
		}
	}
	return &verdict{*check.History(events, o)}
}

// judgeLocks makes a violation of each overlap.
func judgeLocks(l *check.Locks) *verdict {
	v := &verdict{}
	v.Sections = l.Sections
	for _, o := range l.Overlaps {
		text := "two holders at once"
		if len(o.Faults) > 0 {
			text += ", after " + strings.Join(o.Faults, " and ")
		}
		v.Violations = append(v.Violations, check.Violation{Name: "sections", Key: o.Key, Text: text, Events: []history.Event{o.First, o.Second}})
	}
	return v
}

// count copies the counts to the report.
func (v *verdict) count(r *Report) {
	r.Keys, r.Operations, r.Unknown = v.Keys, v.Operations, v.Unknown
	r.Grants, r.Records, r.Replays = v.Grants, v.Records, v.Replays
}
