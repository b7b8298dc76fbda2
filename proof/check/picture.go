package check

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/dibs-go/dibs/proof/history"
)

// A picture shows this much of a history, around its first violation.
const (
	pictureOperations = 300
	picturePatience   = 5 * time.Second
)

// Picture writes a page of HTML that shows the key's history around its first violation:
// what was asked and answered, the longest orders that are possible, and beside them the
// faults, sections, writes and leases of that time. It returns an error if the history has
// no such key, or if the page cannot be written.
func (v *Verdict) Picture(w io.Writer, key string) error {
	if v.ledger == nil {
		return fmt.Errorf("check: there is no picture of a history that was not checked: %v", v.Undecided)
	}
	i := slices.IndexFunc(v.ledger.books, func(b *book) bool { return b.key == key })
	if i < 0 {
		return fmt.Errorf("check: the history has no key %q", key)
	}
	b := v.ledger.books[i]
	from, to := v.around(key)
	s := b.around(from, to)
	m := b.model(&s)
	pm := m.porcupine()
	_, info := porcupine.CheckOperationsVerbose(pm, s.form(), picturePatience)
	for _, op := range s.ops {
		from, to = min(from, op.call), max(to, op.ret)
	}
	info.AddAnnotations(b.annotations(from, to))
	if err := porcupine.Visualize(pm, info, w); err != nil {
		return fmt.Errorf("check: draw the history of %q: %w", key, err)
	}
	return nil
}

// around returns from when to when the events of the key's first violation happened; from
// the beginning if there is none.
func (v *Verdict) around(key string) (from, to time.Duration) {
	i := slices.IndexFunc(v.Violations, func(x Violation) bool { return x.Key == key && len(x.Events) > 0 })
	if i < 0 {
		return 0, never
	}
	from = never
	for _, e := range v.Violations[i].Events {
		from, to = min(from, e.Call), max(to, e.Call, e.Return)
	}
	return from, to
}

// around returns the operations between two moments, and before them as many as a picture
// can show.
func (b *book) around(from, to time.Duration) span {
	ops := b.operations()
	last := 0
	for i, op := range ops {
		if op.call <= to {
			last = i
		}
	}
	first := max(0, last+1-pictureOperations)
	if from == 0 {
		first, last = 0, min(len(ops)-1, pictureOperations)
	}
	if len(ops) == 0 {
		return span{}
	}
	begin := time.Duration(0)
	if first > 0 {
		begin = ops[first].call
	}
	return cut(ops, begin, max(to, ops[last].of.end), first == 0 && len(b.forgot) == 0)
}

// Colours of what is shown beside the calls.
const (
	ofFaults   = "#f4a7a0"
	ofSections = "#a9d3b5"
	ofLeases   = "#b9cdf0"
	ofWrites   = "#e9dca0"
)

// annotations returns what happened beside the calls between two moments.
func (b *book) annotations(from, to time.Duration) []porcupine.Annotation {
	var all []porcupine.Annotation
	show := func(tag, colour, text, details string, since, till time.Duration) {
		if since > to || till < from {
			return
		}
		all = append(all, porcupine.Annotation{
			Tag: tag, Start: int64(max(since, from)), End: int64(min(till, to)),
			Description: text, Details: details, BackgroundColor: colour,
		})
	}
	for _, f := range slices.Concat(b.faults, b.forgot) {
		show("faults", ofFaults, f.Name, describe(f), f.Call, until(f))
	}
	for process, halts := range b.halts {
		for _, h := range halts {
			show(fmt.Sprintf("process %d", process), ofFaults, string(h.Kind), describe(h), h.Call, until(h))
		}
	}
	for _, g := range b.grants {
		show("leases for certain", ofLeases, g.String(), describe(g.head()), g.by, max(g.by, g.certain(b.Slack)))
	}
	for i, e := range b.sections {
		if e.Kind != history.Enter {
			continue
		}
		till, text := e.Call, describe(e)
		for _, l := range b.sections[i:] {
			if l.Kind == history.Leave && l.Fence == e.Fence && l.Process == e.Process {
				till, text = l.Call, text+"; "+describe(l)
				break
			}
		}
		show(fmt.Sprintf("process %d", e.Process), ofSections, fmt.Sprintf("section with fence %d", e.Fence), text, e.Call, till)
	}
	for _, e := range slices.Concat(b.writes, b.effects, b.replies) {
		text := string(e.Kind)
		if e.Fence != 0 {
			text += fmt.Sprintf(" with fence %d", e.Fence)
		}
		if e.Error != "" {
			text += " " + e.Error
		}
		show("writes, effects, replies", ofWrites, text, describe(e), e.Call, until(e))
	}
	return all
}
