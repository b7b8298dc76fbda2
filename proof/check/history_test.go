package check_test

import (
	"bytes"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/history"
)

// builder is a history whose events have names, in Text, by which a test changes them.
type builder struct {
	events []*history.Event
	o      check.Options
}

const ms = time.Millisecond

func (h *builder) at(name string) *history.Event {
	i := slices.IndexFunc(h.events, func(e *history.Event) bool { return e.Text == name })
	if i < 0 {
		panic("no event " + name)
	}
	return h.events[i]
}

// add adds an event that was under way from one moment to another, in milliseconds.
func (h *builder) add(name string, from, to int, e history.Event) *history.Event {
	e.Text, e.Call, e.Return = name, time.Duration(from)*ms, time.Duration(to)*ms
	h.events = append(h.events, &e)
	return &e
}

func (h *builder) drop(names ...string) {
	h.events = slices.DeleteFunc(h.events, func(e *history.Event) bool { return slices.Contains(names, e.Text) })
}

func (h *builder) claim(name string, from, to int, key, token, mode, state string) *history.Event {
	e := history.Event{
		Kind: history.Claim, Process: process(token), Key: key, Token: token, Mode: mode, TTL: time.Second,
		Permits: 1, Weight: 1, State: state, Queued: state == "held" && mode == "queue",
	}
	if mode == "queue" {
		e.PlaceTTL = 1500 * ms
	}
	if state == "held" {
		e.Left = ms
	}
	return h.add(name, from, to, e)
}

func (h *builder) granted(name string, from, to int, key, token, mode string, fence uint64) *history.Event {
	e := h.claim(name, from, to, key, token, mode, "granted")
	e.Fence, e.Attempt = fence, 1
	return e
}

// pushed is a pushed grant of a token that claimed first at from.
func (h *builder) pushed(name string, from, to int, key, token string, fence uint64) *history.Event {
	return h.add(name, from, to, history.Event{
		Kind: history.Pushed, Process: process(token), Key: key, Token: token, TTL: time.Second, State: "granted", Fence: fence, Attempt: 1,
	})
}

func (h *builder) settle(name string, from, to int, key, token, outcome string) *history.Event {
	return h.add(name, from, to, history.Event{Kind: history.Settle, Process: process(token), Key: key, Token: token, Outcome: outcome})
}

func (h *builder) renew(name string, from, to int, key, token string) *history.Event {
	return h.add(name, from, to, history.Event{Kind: history.Renew, Process: process(token), Key: key, Token: token, TTL: time.Second})
}

func (h *builder) happened(kind history.Kind, name string, at int, key, token string, fence uint64) *history.Event {
	return h.add(name, at, at, history.Event{Kind: kind, Process: process(token), Key: key, Token: token, Fence: fence})
}

// process returns the process of a token: each token has its own.
func process(token string) int { return int(token[0]) }

// good is a history of a correct store and its users: A and then B hold a mutex; C leaves
// an answer, which D gets; E asks something else; P, Q and R share permits.
func good() *builder {
	h := &builder{}
	h.granted("A claims", 100, 110, "mutex", "A", "queue", 10)
	h.happened(history.Enter, "A enters", 111, "mutex", "A", 10)
	h.claim("B waits", 150, 160, "mutex", "B", "queue", "held")
	h.renew("A renews", 250, 260, "mutex", "A")
	h.claim("B asks", 300, 310, "mutex", "B", "queue", "held")
	h.happened(history.Leave, "A leaves", 390, "mutex", "A", 10)
	h.settle("A releases", 400, 410, "mutex", "A", "release")
	h.granted("B claims", 405, 420, "mutex", "B", "queue", 11)
	h.happened(history.Enter, "B enters", 421, "mutex", "B", 11)
	h.happened(history.Leave, "B leaves", 600, "mutex", "B", 11)
	h.settle("B releases", 601, 610, "mutex", "B", "release")

	once := func(e *history.Event, fingerprint string) *history.Event {
		e.MaxAge, e.Fingerprint = 1<<63-1, fingerprint
		return e
	}
	once(h.granted("C claims", 100, 110, "once", "C", "queue", 20), "aa")
	once(h.claim("C's rival is held", 120, 130, "once", "c", "try", "held"), "aa")
	h.happened(history.Effect, "C's effect", 150, "once", "C", 20)
	k := h.settle("C keeps", 200, 210, "once", "C", "keep")
	k.Data, k.Retention = "answer", time.Hour
	h.add("C replies", 211, 212, history.Event{Kind: history.Reply, Process: process("C"), Key: "once", Data: "answer"})
	once(h.claim("D is done", 300, 310, "once", "D", "queue", "done"), "aa").Data = "answer"
	h.add("D replies", 311, 312, history.Event{Kind: history.Reply, Process: process("D"), Key: "once", Data: "answer"})
	once(h.claim("E mismatches", 400, 410, "once", "E", "queue", "mismatch"), "bb")

	for i, t := range []string{"P", "Q", "R"} {
		from := 100 + 100*i
		e := h.granted(t+" claims", from, from+10, "permits", t, "try", uint64(30+i))
		e.Permits = 2
		h.settle(t+" releases", from+150, from+160, "permits", t, "release")
	}

	h.add("X reserves", 100, 110, history.Event{
		Kind: history.Claim, Process: process("X"), Key: "place", Token: "X", Mode: "reserve", PlaceTTL: time.Minute, Permits: 1, State: "held", Queued: true,
	})
	h.granted("Y redeems", 200, 210, "place", "Y", "try", 40).From = "X"
	h.settle("Y abandons", 300, 310, "place", "Y", "abandon")
	z := h.granted("Z redeems", 400, 410, "place", "Z", "try", 41)
	z.From, z.Attempt = "X", 2
	h.settle("Z releases", 500, 510, "place", "Z", "release")
	return h
}

func (h *builder) check() *check.Verdict {
	var events []history.Event
	for _, e := range h.events {
		events = append(events, *e)
	}
	return check.History(events, &h.o)
}

// Each case changes the good history. What it changes into is accepted, or is a violation
// of one rule.
func TestHistories(t *testing.T) {
	cases := slices.Concat(leaseCases, recordCases, userCases, placeCases)
	broken := map[string]bool{}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := good()
			c.change(h)
			v := h.check()
			var text bytes.Buffer
			testkit.Must(t, v.WriteText(&text))
			var names []string
			for _, x := range v.Violations {
				names = append(names, x.Name)
				if check.Rules[x.Name] == "" {
					t.Errorf("the rule %q has no description", x.Name)
				}
				if x.Name != "left" && len(x.Events) == 0 {
					t.Errorf("the violation of %q shows no events", x.Name)
				}
			}
			switch {
			case c.breaks == "" && !v.OK():
				t.Errorf("a good history was accused:\n%s", &text)
			case c.breaks != "" && !slices.Contains(names, c.breaks):
				t.Errorf("%q was not found:\n%s", c.breaks, &text)
			}
			broken[c.breaks] = true
		})
	}
	for rule := range maps.Keys(check.Rules) {
		if !broken[rule] {
			t.Errorf("no history breaks the rule %q", rule)
		}
	}
}

// historyCase is a case of TestHistories.
type historyCase struct {
	name   string
	breaks string // the rule, or "" if it is a good history still
	change func(h *builder)
}
