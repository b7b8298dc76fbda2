package serve

import (
	"net/http"

	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/page"
)

// viewer returns who looks at the page for operators; nil if nobody who may.
func (s *Server) viewer(r *http.Request) *page.Viewer {
	s.mu.RLock()
	tokens := s.tokens
	s.mu.RUnlock()
	v := viewerOf(find(tokens, page.Token(r)))
	if v == nil {
		if v = s.config.SingleSignOn.Viewer(r); v != nil && s.config.Namespace != "" {
			v.Namespace = &s.config.Namespace
		}
	}
	if v == nil && tokens == nil && local(r) {
		v = viewerOf(s.everybody)
	}
	if v != nil {
		exchangeOf(r.Context()).by = v.Name
	}
	return v
}

// signIn returns the viewer with a token.
func (s *Server) signIn(token string) *page.Viewer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return viewerOf(find(s.tokens, token))
}

// viewerOf returns a caller as a viewer; nil if it may not look.
func viewerOf(c *caller) *page.Viewer {
	if c == nil || !c.May(credential.Look) {
		return nil
	}
	v := &page.Viewer{Name: c.Name, Act: c.May(credential.Act)}
	if !c.free {
		v.Namespace = &c.Namespace
	}
	return v
}

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
