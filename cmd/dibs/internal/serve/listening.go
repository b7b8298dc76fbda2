package serve

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/dibs-go/dibs/store"
)

// A claim that is carried out after its caller has gone gets a lease or a place that nobody has.
// Its server may have been frozen, and the caller may have settled the token at another server. So
// the server looks, just before it sends a claim to the store, whether its caller still listens.

// Why the caller of a claim does not listen any more. The claim was not sent.
var (
	errGone    = errors.New("the caller has closed its connection")
	errOverdue = errors.New("the call took longer than its timeout_ms")
)

// question is a claim and the call that asks for it.
type question struct {
	claim *store.Claim
	from  *exchange
}

// listening returns nil if the caller still listens for the answer.
func (x *exchange) listening() error {
	switch {
	case x.timeout > 0 && since(x.Began) >= x.timeout:
		return errOverdue
	// net/http ends the context only after it has read the end of the connection. A server that was
	// frozen has not done that yet.
	case x.ctx != nil && x.ctx.Err() != nil, x.conn != nil && hungUp(x.conn):
		return errGone
	}
	return nil
}

// since returns the time since a moment, by the clock by which it is longer. The monotonic clock
// stands while a machine sleeps, and the other one may be set back.
func since(t time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(t), now.Round(0).Sub(t.Round(0)))
}

// carry sends the claims of a batch to the store whose callers still listen.
func (s *Server) carry(ctx context.Context, questions []question, answers []store.Answer) error {
	claims, at := make([]store.Claim, 0, len(questions)), make([]int, 0, len(questions))
	for i, q := range questions {
		if answers[i].Err = q.from.listening(); answers[i].Err == nil {
			claims, at = append(claims, *q.claim), append(at, i)
		}
	}
	if len(claims) == 0 {
		return nil
	}
	got := make([]store.Answer, len(claims))
	err := s.calls.Claim(ctx, claims, got)
	for j, i := range at {
		answers[i] = got[j]
	}
	return err
}

// claimAll sends the claims of a call to the store.
func (s *Server) claimAll(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	questions, from := make([]question, len(claims)), exchangeOf(ctx)
	for i := range claims {
		questions[i] = question{&claims[i], from}
	}
	if err := s.claims.DoAll(ctx, questions, answers); err != nil {
		return err
	}
	for i := range answers {
		if err := answers[i].Err; errors.Is(err, errGone) || errors.Is(err, errOverdue) {
			return err
		}
	}
	return nil
}

type connectionKey struct{}

// withConnection is the server's ConnContext.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, c)
}
