package serve

import (
	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/page"
)

// count counts claims for the page, in their namespaces: each is a request, an answer from a record is
// a replay, a claim that is held is a conflict, and one with another fingerprint or of an unknown outcome
// is refused.
func (s *Server) count(answers []leaseapi.Answer) {
	for i := range answers {
		a := &answers[i]
		s.traffic.Add(a.Namespace, page.Requests, 1)
		switch a.State {
		case "done":
			s.traffic.Add(a.Namespace, page.Replays, 1)
		case "held":
			s.traffic.Add(a.Namespace, page.Conflicts, 1)
		case "mismatch", "unknown":
			s.traffic.Add(a.Namespace, page.Refusals, 1)
		}
	}
}
