package serve

import "github.com/dibs-go/dibs/page"

// count counts a call for the page: its claims are requests, an answer from a record is a replay,
// and a claim that is held is a conflict.
func (s *Server) count(c *Call) {
	if c.Verb != "claim" {
		return
	}
	for outcome, n := range c.Outcomes {
		s.traffic.Add(page.Requests, int64(n))
		switch outcome {
		case "done":
			s.traffic.Add(page.Replays, int64(n))
		case "held":
			s.traffic.Add(page.Conflicts, int64(n))
		}
	}
}
