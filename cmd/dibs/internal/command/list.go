package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs/internal/suggest"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

// conditions are all conditions of a key, in the order in which ls counts them. Keys that are
// done come last, because they are usually many.
var conditions = []store.Condition{
	store.ConditionHeld, store.ConditionWaiting, store.ConditionUnknown, store.ConditionAbandoned, store.ConditionDone,
}

// live are the conditions of keys that something happens to, or has happened to.
var live = conditions[:len(conditions)-1]

// allStates is what --state calls all conditions.
const allStates = "all"

// states are the values of --state.
func states() []string { return append(texts(conditions), allStates) }

// maxCounted is how many keys that are done ls counts without listing them.
const maxCounted = 1000

// list has the flags of dibs ls.
type list struct {
	glob       string
	states     []string
	sort       string
	limit      int
	namespaces bool
	json       bool

	shown []store.Condition
}

func (p *program) list() *cobra.Command {
	var l list
	cmd := &cobra.Command{
		Use:   "ls [--glob PATTERN]",
		Short: "List the keys that are held or waited for",
		Long: `Lists the keys of the store that are held or waited for, and those whose last
holder crashed (abandoned, unknown). Keys that only have a record are done. They
are not listed without --state done or --state all, because there may be a
million of them. The last line says how many keys are not shown. Keys that are
done are counted up to 1000.

A line has the key's digest, as in logs; the holder (host, process and command),
since when it holds the key, and how much of its lease is left; how many callers
wait now; how many places are reserved for callers that are still to come; and
the record that a finished holder left. A key with several holders has a line
for each.

Lines are sorted by key. --sort since begins with what has lasted longest: the
lease, or without one the record. --sort waiters begins with the longest queue.
--limit without --sort takes the first keys that the store finds.

On a terminal the states unknown and abandoned have a colour, unless NO_COLOR is
set.

A key with characters that a terminal does not show is printed in double quotes.
Those characters are escaped as in Go and JSON. --json prints one object a line,
for programs, and no last line.`,
		Example: `  dibs ls
  dibs ls --state held --sort since --limit 10
  dibs ls --state done --glob 'backup*'
  dibs ls --json | jq -r 'select(.waiters > 10) | .key'`,
		Args: flagsOnly,
		RunE: p.run(func(cmd *cobra.Command, _ []string) error {
			if err := l.check(cmd.Flags()); err != nil {
				return err
			}
			return p.look(cmd.Context(), func(s *anystore.Store, in store.Inspector) error {
				return p.listAll(cmd.Context(), s, in, &l)
			})
		}),
	}
	f := cmd.Flags()
	f.StringVar(&l.glob, "glob", "", "list only keys that match the `PATTERN`: * is any text, ? any byte")
	f.StringSliceVar(&l.states, "state", nil, "list the keys in the `STATE`: held, waiting, unknown, abandoned, done or all; can be repeated")
	f.StringVar(&l.sort, "sort", "", "sort by `COLUMN`: since or waiters (default: by key)")
	f.IntVar(&l.limit, "limit", 0, "list at most `N` keys")
	f.BoolVar(&l.namespaces, "all-namespaces", false, "list the keys of all namespaces")
	f.BoolVar(&l.json, "json", false, "print one JSON object a line")
	p.storeFlags(f)
	complete(cmd, "sort", "since", "waiters")
	complete(cmd, "state", states()...)
	return cmd
}

// check refuses flags that contradict each other, and finds out which states are shown.
func (l *list) check(fs *pflag.FlagSet) error {
	switch {
	case fs.Changed("glob") && l.glob == "":
		return usagef("--glob: the pattern is empty; * matches all keys")
	case l.namespaces && fs.Changed("namespace"):
		return usagef("--all-namespaces: it cannot be used together with --namespace")
	case fs.Changed("sort") && l.sort != "since" && l.sort != "waiters":
		return usagef("--sort: %s is not a column to sort by; it must be since or waiters", quote(l.sort))
	case fs.Changed("limit") && l.limit < 1:
		return usagef("--limit: %d is out of range; it must be at least 1", l.limit)
	case fs.Changed("state") && len(l.states) == 0:
		return usagef("--state: it is empty; it must be held, waiting, unknown, abandoned, done or all")
	}
	if len(l.states) == 0 {
		l.shown = live
	}
	for _, name := range l.states {
		switch c := store.Condition(name); {
		case name == allStates:
			l.shown = conditions
		case slices.Contains(conditions, c):
			l.shown = append(l.shown, c)
		default:
			return usagef("--state: %v", suggest.NoneOf(name, states()...))
		}
	}
	return nil
}

func (l *list) shows(c store.Condition) bool { return slices.Contains(l.shown, c) }

// found is what a listing has found so far.
type found struct {
	list  *list
	now   time.Time
	keys  [][]entryJSON           // the lines of each key
	total map[store.Condition]int // of all keys that were found
	more  bool                    // there are more keys that are done
}

func (p *program) listAll(ctx context.Context, s *anystore.Store, in store.Inspector, l *list) error {
	f := found{list: l, now: time.Now(), total: map[store.Condition]int{}}
	q := store.Query{Conditions: live, Match: matching(l.glob), Data: true} // for the status of an HTTP answer
	if !l.namespaces {
		q.Namespace = &p.namespace
	}
	for e, err := range entries(ctx, in, q) {
		if err != nil {
			return err
		}
		f.add(e)
	}
	var err error
	if q.Conditions = []store.Condition{store.ConditionDone}; l.shows(store.ConditionDone) {
		err = f.addDone(ctx, in, q)
	} else {
		err = f.countDone(ctx, in, q)
	}
	if err != nil {
		return err
	}
	f.cut()
	lines := slices.Concat(f.keys...)
	if l.json {
		return writeLines(p.env.Stdout, lines)
	}
	// Standard output has the table alone.
	if err := p.nameStore(s); err != nil {
		return err
	}
	if err := writeTable(p.env.Stdout, p.painter(p.env.Stdout), lines, l.namespaces, f.now); err != nil {
		return err
	}
	return f.writeHidden(p.env.Stdout)
}

// add adds a key.
func (f *found) add(e store.Entry) {
	if f.total[e.Condition]++; f.list.shows(e.Condition) {
		lines := entryLines(e, f.now)
		slices.SortStableFunc(lines, func(a, b entryJSON) int { return cmp.Compare(a.Fence, b.Fence) })
		f.keys = append(f.keys, lines)
	}
	if most := f.list.limit; most > 0 && f.list.sort != "" && len(f.keys) >= 2*most+maxCounted {
		f.cut() // so that a limit bounds the memory, too
	}
}

// addDone adds the keys that are done. It stops after the limit, unless they must be sorted, and
// counts some more.
func (f *found) addDone(ctx context.Context, in store.Inspector, q store.Query) error {
	full := func() bool { return f.list.limit > 0 && f.list.sort == "" && len(f.keys) >= f.list.limit }
	if full() {
		return f.countDone(ctx, in, q)
	}
	beyond := 0
	for e, err := range entries(ctx, in, q) {
		if err != nil {
			return err
		}
		if full() {
			if beyond == maxCounted {
				f.more = true
				break
			}
			f.total[e.Condition]++
			beyond++
			continue
		}
		f.add(e)
	}
	return nil
}

// countDone counts the keys that are done, but looks at no more than some of them.
func (f *found) countDone(ctx context.Context, in store.Inspector, q store.Query) error {
	match, seen := q.Match, 0
	q.Match, q.Data = nil, false
	for e, err := range entries(ctx, in, q) {
		if err != nil {
			return err
		}
		if seen++; seen > maxCounted {
			f.more = true
			break
		}
		if match == nil || match(e.Key) {
			f.total[e.Condition]++
		}
	}
	return nil
}

// cut sorts the keys and drops those beyond the limit.
func (f *found) cut() {
	slices.SortStableFunc(f.keys, func(a, b []entryJSON) int {
		first := 0
		switch f.list.sort {
		case "since":
			first = -cmp.Compare(f.lasts(a), f.lasts(b))
		case "waiters":
			first = -cmp.Compare(a[0].Waiters, b[0].Waiters)
		}
		return cmp.Or(first, strings.Compare(a[0].Namespace, b[0].Namespace), strings.Compare(a[0].name, b[0].name))
	})
	if n := f.list.limit; n > 0 && len(f.keys) > n {
		f.keys = f.keys[:n]
	}
}

// lasts returns how long a key has been held, the longest of its leases, or how old its record
// is; else -1.
func (f *found) lasts(lines []entryJSON) time.Duration {
	longest := time.Duration(-1)
	for _, line := range lines {
		switch {
		case line.Holder != nil:
			longest = max(longest, f.now.Sub(line.Holder.Since))
		case line.Record != nil:
			longest = max(longest, time.Duration(line.Record.AgeMS)*time.Millisecond)
		}
	}
	return longest
}

// hidden returns how many keys in each state are not shown, and whether that is because of
// their state.
func (f *found) hidden() (texts []string, byState bool) {
	shown := map[store.Condition]int{}
	for _, lines := range f.keys {
		shown[lines[0].condition]++
	}
	for _, c := range conditions {
		n := f.total[c] - shown[c]
		byState = byState || (n > 0 || f.more && c == store.ConditionDone) && !f.list.shows(c)
		switch more := f.more && c == store.ConditionDone; {
		case more && n == 0:
			texts = append(texts, "an unknown number of done")
		case more:
			texts = append(texts, fmt.Sprintf("%d or more %s", n, c))
		case n > 0:
			texts = append(texts, fmt.Sprintf("%d %s", n, c))
		}
	}
	return texts, byState
}

// writeHidden writes the line that says what is not shown, if there is anything.
func (f *found) writeHidden(w io.Writer) error {
	texts, byState := f.hidden()
	if len(texts) == 0 {
		return nil
	}
	hint := ""
	if byState {
		hint = " (--state all lists all states)"
	}
	_, err := fmt.Fprintf(w, "not shown: %s%s\n", strings.Join(texts, ", "), hint)
	return err
}

// nameStore names the store on standard error, because a wrong one looks like an empty one.
func (p *program) nameStore(s *anystore.Store) error {
	where := "store " + s.String()
	if p.namespace != "" {
		where += ", namespace " + quote(p.namespace)
	}
	_, err := fmt.Fprintln(p.env.Stderr, where)
	return err
}
