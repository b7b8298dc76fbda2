package torture

import (
	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/history"
)

// verdict is what the check says of a history.
type verdict struct{ check.Verdict }

// judge checks the history of a run with these faults.
func judge(events []history.Event, faults []*fault.Fault, left []string) *verdict {
	o := &check.Options{Left: left}
	for _, f := range faults {
		if f.Forgets {
			o.Forgets = append(o.Forgets, f.Name)
		}
		if f.Kind == fault.Worker {
			o.Workers = append(o.Workers, f.Name)
		}
	}
	return &verdict{*check.History(events, o)}
}

// count fills the report's figures in.
func (v *verdict) count(r *Report) {
	r.Keys, r.Operations, r.Unknown = v.Keys, v.Operations, v.Unheard
	r.Grants, r.Records, r.Replays = v.Grants, v.Records, v.Replays
}
