package check_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/history"
)

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
