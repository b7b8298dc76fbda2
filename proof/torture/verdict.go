package torture

import (
	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/history"
)

// verdict is what the check says of a history.
type verdict struct{ check.Verdict }

// judge checks a history.
func judge(events []history.Event, forgets, left []string) *verdict {
	return &verdict{*check.History(events, &check.Options{Forgets: forgets, Left: left})}
}

// count fills the report's figures in.
func (v *verdict) count(r *Report) {
	r.Keys, r.Operations, r.Unknown = v.Keys, v.Operations, v.Unheard
	r.Grants, r.Records, r.Replays = v.Grants, v.Records, v.Replays
}
