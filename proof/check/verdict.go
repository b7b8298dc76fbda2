package check

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

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

// Options say how to check a history. Nil and the zero value are the defaults.
type Options struct {
	// Slack is how much shorter or longer a store may count a time, because its clock is coarse.
	// It does not apply to fences. Default: 5 ms.
	Slack time.Duration

	// Late is how much later a store may notice that a lease, a place or a record has ended, because
	// nobody moved its time. Default: 0.
	Late time.Duration

	// Timeout bounds the models, over all keys. A question that is not decided by then is a
	// failure. Default: 60 s.
	Timeout time.Duration

	// Reaction is how long after the end of its lease a section may go on in a process that was
	// not stopped. Default: 500 ms.
	Reaction time.Duration

	// Settling is how long after a fault connections may still be broken. The order of a queue
	// is not checked then. Default: 2 s.
	Settling time.Duration

	// SubscribeDelay is for how long a process that is new to a key may miss its pushed grants,
	// so that others may pass it. A Redis Cluster is subscribed to shard by shard. Default: 0.
	SubscribeDelay time.Duration

	// Forgets are the names of the faults after which the store may have lost data, or after
	// which its clock has stepped. Leases and records from before do not count then. Fences must
	// rise all the same. A Fault with a Key and the name evict, forget or resolve is always one,
	// for that key.
	Forgets []string

	// Stale are the names of the faults during which a store may answer from an older state, of when
	// the fault began, if the answer changes nothing: that a key is held or free. A record that it
	// answers with counts all the same.
	Stale []string

	// Workers are the names of the faults that strike single processes only. Killed and Stopped
	// are the events of them.
	Workers []string

	// Left is what the run has left behind in the store. Each is a violation.
	Left []string
}

// withDefaults returns the options with their defaults, or an error that names a field.
func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"Slack", r.Slack}, {"Late", r.Late}, {"Timeout", r.Timeout}, {"Reaction", r.Reaction}, {"Settling", r.Settling}, {"SubscribeDelay", r.SubscribeDelay}} {
		if f.d < 0 {
			return r, fmt.Errorf("check: Options.%s is %v; it must not be negative", f.name, f.d)
		}
	}
	r.Slack = cmp.Or(r.Slack, 5*time.Millisecond)
	r.Timeout = cmp.Or(r.Timeout, time.Minute)
	r.Reaction = cmp.Or(r.Reaction, 500*time.Millisecond)
	r.Settling = cmp.Or(r.Settling, 2*time.Second)
	return r, nil
}

// forced are the names of the faults by which an operator changes one key.
var forced = []string{"evict", "forget", "resolve"}

// forgets reports whether a fault of that name may lose data, of one key or of all.
func (o *Options) forgets(name string, keyed bool) bool {
	return slices.Contains(o.Forgets, name) || keyed && slices.Contains(forced, name)
}
