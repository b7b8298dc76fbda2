package check

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/dibs-go/dibs/proof/history"
)

// History checks the events of a run on one store. They need not be sorted, and are not changed.
func History(events []history.Event, o *Options) *Verdict {
	v := &Verdict{Faults: map[string]int{}}
	options, err := o.withDefaults()
	if err != nil {
		v.Undecided = append(v.Undecided, err.Error())
		return v
	}
	if !slices.IsSortedFunc(events, func(a, b history.Event) int { return cmp.Compare(a.Call, b.Call) }) {
		events = slices.Clone(events)
		history.Sort(events)
	}
	v.index = newIndex(events, options)
	v.count(events)
	for _, left := range options.Left {
		v.violated("left", "", "the store has "+left)
	}
	found := make([][]Violation, len(v.index.keys))
	undecided := make([]string, len(v.index.keys))
	waits := make([]int, len(v.index.keys))
	v.index.each(func(i int, b *keyHistory, patience time.Duration) {
		c := &checker{keyHistory: b}
		for _, rule := range rules {
			rule(c)
		}
		undecided[i] = c.decide(patience)
		found[i], waits[i] = c.found, c.waits
	})
	for i := range found {
		v.Violations = append(v.Violations, found[i]...)
		v.Waits += waits[i]
		if undecided[i] != "" {
			v.Undecided = append(v.Undecided, undecided[i])
		}
	}
	return v
}

func (v *Verdict) violated(name, key, text string) {
	v.Violations = append(v.Violations, Violation{Name: name, Key: key, Text: text})
}

func (v *Verdict) count(events []history.Event) {
	v.Keys, v.Unknown = len(v.index.keys), v.index.unknown
	for i := range events {
		switch e := &events[i]; e.Kind {
		case history.Claim:
			v.Operations++
			if e.State == "done" {
				v.Replays++
			}
		case history.Settle:
			v.Operations++
			if e.Outcome == "keep" && e.Answered() && e.Error == "" {
				v.Records++
			}
		case history.Renew, history.Pushed:
			v.Operations++
		case history.Enter:
			v.Sections++
		case history.Fault:
			v.Faults[e.Name] += e.Times
		case history.Killed, history.Stopped:
			v.Faults[string(e.Kind)] += max(1, e.Times)
		}
	}
	for _, b := range v.index.keys {
		v.Grants += len(b.grants)
	}
}

// each calls f with every key, on all processors, and with its share of the time that is left,
// by the number of its calls.
func (l *index) each(f func(i int, b *keyHistory, patience time.Duration)) {
	deadline := time.Now().Add(l.Timeout)
	todo := 0
	for _, b := range l.keys {
		todo += len(b.calls) + 1
	}
	workers := runtime.GOMAXPROCS(0)
	var mu sync.Mutex
	next := 0
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				if i >= len(l.keys) {
					mu.Unlock()
					return
				}
				b := l.keys[i]
				left := time.Until(deadline)
				share := left.Seconds() * float64(len(b.calls)+1) / float64(todo) * float64(workers)
				todo -= len(b.calls) + 1
				mu.Unlock()
				// Most keys need far less than their share, so that others may have more.
				f(i, b, min(left, max(left/4, time.Duration(share*float64(time.Second)))))
			}
		})
	}
	all.Wait()
}

// checker checks one key.
type checker struct {
	*keyHistory
	found []Violation
	waits int
}

// maxFound bounds how many violations of one rule are reported for one key.
const maxFound = 3

// violated reports a violation, with the events that show it.
func (c *checker) violated(name, text string, events ...*history.Event) {
	x := Violation{Name: name, Key: c.key, Text: text}
	if first := slices.IndexFunc(c.found, func(v Violation) bool { return v.Name == name }); first >= 0 && len(c.found)-first > maxFound {
		return
	}
	slices.SortStableFunc(events, byCall)
	for _, e := range slices.Compact(events) {
		x.Events = append(x.Events, *e)
	}
	c.found = append(c.found, x)
}

// decide checks the key with the models, and returns what could not be decided.
func (c *checker) decide(patience time.Duration) (undecided string) {
	deadline := time.Now().Add(patience)
	for _, s := range c.spans(c.operations()) {
		switch c.model(&s).check(&s, time.Until(deadline)) {
		case porcupine.Unknown:
			return fmt.Sprintf("the models could not decide on %q, with %d calls, within %v; give Options.Timeout more, or the run fewer calls of one key", c.key, len(c.calls), patience)
		case porcupine.Illegal:
			c.report(s)
			return ""
		}
	}
	return ""
}

// model returns the model for a span of the key's history.
func (b *keyHistory) model(s *span) *model {
	m := &model{mutex: b.permits == 1, slack: b.Slack, late: b.Late, fresh: s.fresh, records: true}
	m.counting = s.whole && m.mutex && len(b.faults) == 0 && len(b.halts) == 0 &&
		!slices.ContainsFunc(b.calls, func(e *history.Event) bool { return !e.Answered() })
	return m
}

// check asks porcupine whether the operations can have happened.
func (m *model) check(s *span, patience time.Duration) porcupine.CheckResult {
	switch {
	case len(s.ops) == 0:
		return porcupine.Ok
	case patience <= 0:
		return porcupine.Unknown
	}
	return porcupine.CheckOperationsTimeout(m.porcupine(), s.form(), patience)
}

// form returns the operations as porcupine takes them.
func (s *span) form() []porcupine.Operation {
	clients := map[*attempt]int{}
	ops := make([]porcupine.Operation, len(s.ops))
	for i := range s.ops {
		op := &s.ops[i]
		client, ok := clients[op.of]
		if !ok {
			client = len(clients)
			clients[op.of] = client
		}
		ops[i] = porcupine.Operation{ClientId: client, Input: op, Call: int64(op.call), Return: int64(op.ret)}
	}
	return ops
}

// How long to look for a smaller counter-example.
const (
	// shrinkPatience and shrinkStep bound the search for a smaller counter-example.
	shrinkPatience = 3 * time.Second
	shrinkStep     = 300 * time.Millisecond
)

// report reports that a span cannot have happened, with as few events as show it.
func (c *checker) report(s span) {
	deadline := time.Now().Add(shrinkPatience)
	illegal := func(s *span) bool {
		found := porcupine.Unknown
		for range 2 { // the machine may have paused meanwhile
			if found == porcupine.Unknown && time.Now().Before(deadline) {
				found = c.model(s).check(s, shrinkStep)
			}
		}
		return found == porcupine.Illegal
	}
	s = s.shorten(illegal)
	s = s.thin(illegal)
	name := "register"
	m := c.model(&s)
	// A model of its own: a check that had no time left continues for a moment and reads it.
	leases := c.model(&s)
	leases.records = false
	if leases.check(&s, shrinkPatience) == porcupine.Illegal {
		name, m = "lease", leases
	}
	text := "no order of these calls is one in which a correct store could have given these answers"
	if why := m.reason(&s); why != "" {
		text += "; the nearest one ends with " + why
	}
	var events []*history.Event
	for _, op := range s.ops {
		if !op.loose {
			events = append(events, op.e)
		}
	}
	c.violated(name, text, events...)
}

// shorten cuts off the end of a span while the rest stays illegal.
func (s span) shorten(illegal func(*span) bool) span {
	var ends []time.Duration
	for _, op := range s.ops {
		ends = append(ends, op.of.end)
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)
	until := func(end time.Duration) span {
		shorter := cut(s.ops, 0, end, s.fresh)
		shorter.whole = shorter.whole && s.whole
		return shorter
	}
	i := sort.Search(len(ends), func(i int) bool {
		shorter := until(ends[i])
		return illegal(&shorter)
	})
	if i < len(ends) {
		return until(ends[i])
	}
	return s
}

// thin leaves out tokens, first many and then single ones, while the rest stays illegal.
func (s span) thin(illegal func(*span) bool) span {
	var tokens []*attempt
	for _, op := range s.ops {
		if !op.loose && !slices.Contains(tokens, op.of) {
			tokens = append(tokens, op.of)
		}
	}
	for n := max(1, len(tokens)/2); n > 0; n /= 2 {
		for i := 0; i+n <= len(tokens); {
			thinner := s.without(tokens[i : i+n])
			if illegal(&thinner) {
				s, tokens = thinner, slices.Delete(slices.Clone(tokens), i, i+n)
			} else {
				i += n
			}
		}
	}
	return s
}

// without returns the span without some tokens.
func (s span) without(tokens []*attempt) span {
	r := span{fresh: s.fresh, whole: s.whole}
	for _, op := range s.ops {
		if slices.Contains(tokens, op.of) {
			r.leaveOut(op, 0)
		} else {
			r.ops = append(r.ops, op)
		}
	}
	r.number()
	return r
}

// reason names the operation that cannot follow the longest possible order, and why.
func (m *model) reason(s *span) string {
	pm := m.porcupine()
	_, info := porcupine.CheckOperationsVerbose(pm, s.form(), shrinkStep)
	var longest []porcupine.Operation
	for _, part := range info.PartialLinearizationsOperations() {
		for _, order := range part {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	states := []*state{m.begin()}
	happened := map[*operation]bool{}
	for _, o := range longest {
		op := o.Input.(*operation)
		happened[op] = true
		var next []*state
		for _, s := range states {
			after, _ := m.step(s, op)
			next = append(next, after...)
		}
		states = next
	}
	var stuck *operation
	for i := range s.ops {
		if op := &s.ops[i]; !happened[op] && (stuck == nil || op.ret < stuck.ret) {
			stuck = op
		}
	}
	if stuck == nil || len(states) == 0 {
		return ""
	}
	_, why := m.step(states[0], stuck)
	if why == "" {
		return ""
	}
	return fmt.Sprintf("%q: %s", stuck, why)
}
