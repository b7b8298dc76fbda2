package torture

import (
	"strings"
	"time"

	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/history"
)

// verdict is the result of the check.
type verdict struct{ check.Verdict }

// subscribeDelay is how long a process may take to subscribe to another shard of a Redis
// Cluster. After a failover it may take twice as long.
const subscribeDelay = 3 * time.Second

// reaction is how late a section may end, because the machine may pause for a second. The
// simulation checks it exactly.
const reaction = 2 * time.Second

// judge checks the history of a run with these faults, on the store of that URL.
func judge(events []history.Event, faults []*fault.Fault, left []string, url string) *verdict {
	o := &check.Options{Left: left, Reaction: reaction}
	scheme, _, _ := strings.Cut(url, ":")
	if strings.HasSuffix(scheme, "+cluster") {
		o.SubscribeDelay, o.Settling = subscribeDelay, 2*subscribeDelay
	}
	if scheme != "sqlite" { // which goes by the time since boot
		o.Forgets = append(o.Forgets, clockSet)
	}
	for _, f := range faults {
		if f.Forgets {
			o.Forgets = append(o.Forgets, f.Name)
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
