package retry

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
)

// A sending is a request while it is sent, again and again, until a try has its whole answer.
//
//	send ── no answer, or a refusal to wait out ── again, wait ── send
//	  └── an answer, which is read ── breaks off ── again, wait ── send ── a replay, read on
type sending struct {
	t     *Transport
	ctx   context.Context                              // of the caller
	again func(context.Context) (*http.Request, error) // nil if the request can be sent only once
	left  int                                          // tries
}

// Why a request is not sent again.
var (
	errOnce     = errors.New("the request can be sent only once")
	errTries    = errors.New("all tries were used (Options.MaxTries)")
	errBudget   = errors.New("the budget of retries was used up (Options.Budget)")
	errDeadline = errors.New("the context would end before the next try")
)

// send sends the request until a try gets an answer that a retry does not change, or no further
// try is allowed. In the latter case stopped says why.
func (s *sending) send(request *http.Request) (response *http.Response, stopped, err error) {
	for {
		s.left--
		response, err = s.t.options.Base.RoundTrip(request)
		pause, retry := s.pauseAfter(response, err)
		if !retry {
			return response, nil, err
		}
		next, cannot := s.next(pause)
		if cannot != nil {
			return response, cannot, err
		}
		if response != nil {
			_ = response.Body.Close()
		}
		if err := s.wait(next, pause); err != nil {
			return nil, err, err
		}
		request = next
	}
}

// next returns the request to send after the pause. The error says why it may not be sent again.
func (s *sending) next(pause time.Duration) (*http.Request, error) {
	deadline, ends := s.ctx.Deadline()
	switch {
	case s.again == nil:
		return nil, errOnce
	case s.left == 0:
		return nil, errTries
	case s.ctx.Err() != nil:
		return nil, context.Cause(s.ctx)
	case ends && time.Until(deadline) < pause:
		return nil, errDeadline
	case !s.t.budget.take():
		return nil, errBudget
	}
	return s.again(s.ctx)
}

// wait waits before the request is sent. If the context ends, it returns the context's cause.
func (s *sending) wait(request *http.Request, pause time.Duration) error {
	err := backoff.Sleep(s.ctx, pause)
	if err != nil {
		closeBody(request)
	}
	return err
}

// backoff returns the pause after the last try.
func (s *sending) backoff() time.Duration {
	o := &s.t.options
	return backoff.Exponential{Min: o.Backoff, Max: o.MaxBackoff}.Pause(o.MaxTries - s.left)
}

// pauseAfter returns whether a try may be repeated, and after how long.
func (s *sending) pauseAfter(response *http.Response, err error) (time.Duration, bool) {
	pause := s.backoff()
	if err != nil {
		// A retry does not make a certificate valid.
		_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
		return pause, !untrusted
	}
	if response.Header.Get(replayedField) == "true" {
		return 0, false // a replay does not change
	}
	switch response.StatusCode {
	case http.StatusConflict, http.StatusTooManyRequests, http.StatusServiceUnavailable:
	default:
		return 0, false
	}
	after, ok := retryAfter(response)
	if !ok || after > s.t.options.MaxBackoff {
		return 0, false
	}
	return max(pause, after+rand.N(pause/2+1)), true
}

// replayedField marks an answer that the server had stored.
const replayedField = "Idempotent-Replayed"

// retryAfter parses Retry-After (RFC 9110, section 10.2.3): seconds, or a date.
func retryAfter(response *http.Response) (time.Duration, bool) {
	field := strings.TrimSpace(response.Header.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(field, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	if date, err := http.ParseTime(field); err == nil {
		now := time.Now()
		if sent, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			now = sent // by the clock that made the date
		}
		return max(date.Sub(now), 0), true
	}
	return 0, false
}
