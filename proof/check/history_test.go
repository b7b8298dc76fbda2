package check_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
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

func TestVerdictCounts(t *testing.T) {
	h := good()
	h.add("cut", 1, 2, history.Event{Kind: history.Fault, Name: "cut", Times: 7})
	h.add("killed", 3, 4, history.Event{Kind: history.Killed, Process: 99})
	h.at("R releases").Error = history.Unknown
	h.o.Settling = 1
	v := h.check()
	if !v.OK() {
		t.Errorf("%+v", v.Violations)
	}
	got := *v
	if got.Keys != 4 || got.Operations != 23 || got.Unknown != 1 || got.Grants != 8 || got.Records != 1 || got.Replays != 1 ||
		got.Sections != 2 || got.Waits != 1 || got.Faults["cut"] != 7 || got.Faults["killed"] != 1 {
		t.Errorf("counted %+v", got)
	}
}

// What is not decided in time is not a pass.
func TestTimeoutIsAFailure(t *testing.T) {
	h := good()
	h.o.Timeout = 1
	v := h.check()
	if v.OK() || len(v.Undecided) == 0 || len(v.Violations) > 0 {
		t.Errorf("undecided: %q, violations: %v", v.Undecided, v.Violations)
	}
	if text := textOf(t, v); !strings.Contains(text, "UNDECIDED") || strings.Contains(text, "no violation\n") {
		t.Errorf("the text does not say so:\n%s", text)
	}
}

func TestOptionsAreValidated(t *testing.T) {
	for field, o := range map[string]check.Options{
		"Slack": {Slack: -1}, "Timeout": {Timeout: -1}, "Reaction": {Reaction: -1}, "Settling": {Settling: -1},
	} {
		v := check.History(nil, &o)
		if v.OK() || !strings.Contains(v.Undecided[0], "Options."+field) {
			t.Errorf("%s: %q", field, v.Undecided)
		}
	}
	if v := check.History(nil, nil); !v.OK() {
		t.Errorf("an empty history: %+v", v)
	}
}

// Waiters that give up their places all at once, as the calls of one batch do, cost nothing:
// there are too many orders of them to try all. (A seed of proof/sim.)
func TestGivingUpAtOnce(t *testing.T) {
	h := &builder{}
	h.o.Timeout = time.Minute
	h.granted("A", 10, 12, "mutex", "a", "queue", 10)
	h.settle("A releases", 20, 30, "mutex", "a", "release")
	for i := range 40 {
		token := strings.Repeat("0", i+1)
		h.claim("waits", 13, 14, "mutex", token, "queue", "held")
		h.settle("gives up", 20, 30, "mutex", token, "undo")
	}
	h.granted("B", 40, 42, "mutex", "b", "queue", 20)
	if v := h.check(); !v.OK() {
		t.Errorf("%+v, undecided %q", v.Violations, v.Undecided)
	}
	h.granted("C", 50, 52, "mutex", "c", "queue", 30)
	if v := h.check(); len(v.Undecided) > 0 || len(v.Violations) == 0 || v.Violations[0].Name != "lease" {
		t.Errorf("B's lease stood when C was granted the key: %+v, undecided %q", v.Violations, v.Undecided)
	}
}

// A counter-example has what matters, and little else: here two tokens of a hundred.
func TestCounterExampleIsSmall(t *testing.T) {
	h := &builder{}
	for i := range 100 {
		token := strings.Repeat("T", i+1)
		h.granted("", 1000+100*i, 1010+100*i, "mutex", token, "try", uint64(1+i))
		if i != 42 {
			h.settle("", 1050+100*i, 1060+100*i, "mutex", token, "release")
		}
	}
	v := h.check()
	if len(v.Violations) != 1 || v.Violations[0].Name != "lease" {
		t.Fatalf("%+v", v.Violations)
	}
	x := v.Violations[0]
	if len(x.Events) > 4 || !strings.Contains(x.Text, "fence 43") || !strings.Contains(x.Text, "the key was held by") {
		t.Errorf("%s", textOf(t, v))
	}
}

// A long history is divided, and nothing falls between the parts.
func TestLongHistories(t *testing.T) {
	events := hot(12_000, 1, 8)
	if v := check.History(events, nil); !v.OK() {
		t.Fatal(textOf(t, v))
	}
	for _, at := range []int{100, 6000, 11_500} {
		changed := append([]history.Event(nil), events...)
		i := at
		for changed[i].Kind != history.Renew {
			i++
		}
		changed[i].Error = history.Lost
		if v := check.History(changed, nil); v.OK() {
			t.Errorf("call %d had lost its lease, and the check did not see it", i)
		}
	}
}

func textOf(t *testing.T, v *check.Verdict) string {
	t.Helper()
	var b strings.Builder
	testkit.Must(t, v.WriteText(&b))
	return b.String()
}

func TestHotKeysAreAccepted(t *testing.T) {
	if v := accepted(t, hot(20_000, 3, 16)); v.Waits < 100 || v.Unknown < 50 || v.Grants < 1000 {
		t.Errorf("that was too little to mean anything: %+v", v)
	}
}

func accepted(t testing.TB, events []history.Event) *check.Verdict {
	v := check.History(events, nil)
	if !v.OK() {
		var text bytes.Buffer
		v.WriteText(&text)
		t.Fatal(text.String())
	}
	return v
}

// hot returns about n calls of a correct mutex that many users want at once, on each of some
// keys. Some settlements are not answered of, and their leases run out.
func hot(n, keys, users int) []history.Event {
	r := rand.New(rand.NewPCG(1, 2))
	const ttl = time.Second
	var events []history.Event
	token := 0
	for k := range keys {
		now, fence := time.Duration(1+r.IntN(1e9)), uint64(k*1_000_000)
		window := func() (call, ret time.Duration) {
			return now - time.Duration(1+r.IntN(2e5)), now + time.Duration(1+r.IntN(2e5))
		}
		key := fmt.Sprint("key", k)
		ask := func(token, process int) history.Event {
			call, ret := window()
			return history.Event{
				Kind: history.Claim, Key: key, Token: fmt.Sprintf("%032x", token), Process: process, Mode: "queue",
				TTL: ttl, PlaceTTL: 3 * ttl / 2, Permits: 1, Left: 1, Call: call, Return: ret, State: "held", Queued: true,
			}
		}
		type waiter struct{ token, process int }
		newcomer := func() waiter {
			token++
			return waiter{token, token%users + 1}
		}
		holder := newcomer()
		var queue []waiter
		for len(events) < n*(k+1)/keys {
			fence++
			e := ask(holder.token, holder.process)
			e.State, e.Queued, e.Fence, e.Attempt = "granted", false, fence, 1
			events = append(events, e)
			now += time.Millisecond
			for len(queue) < users-1 { // every user that does not wait comes again
				w := newcomer()
				queue = append(queue, w)
				now += time.Duration(r.IntN(1e6))
				events = append(events, ask(w.token, w.process))
			}
			for _, w := range queue[r.IntN(len(queue)):] { // some ask again
				now += time.Duration(r.IntN(1e5))
				events = append(events, ask(w.token, w.process))
			}
			now += time.Duration(1e6 + r.IntN(1e7))
			call, ret := window()
			events = append(events, history.Event{Kind: history.Renew, Key: key, Token: e.Token, Process: e.Process, TTL: ttl, Call: call, Return: ret})
			now += time.Duration(1e6 + r.IntN(1e7))
			call, ret = window()
			s := history.Event{Kind: history.Settle, Key: key, Token: e.Token, Process: e.Process, Outcome: "release", Call: call, Return: ret}
			if r.IntN(20) == 0 {
				s.Error = history.Unknown
				for range 4 {
					now += ttl/4 - 4*time.Millisecond
					for _, w := range queue { // no waiter loses its place
						events = append(events, ask(w.token, w.process))
					}
				}
				now += 20 * time.Millisecond
			}
			events = append(events, s)
			now += time.Millisecond
			holder, queue = queue[0], queue[1:]
		}
	}
	history.Sort(events)
	return events
}
