package httpstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/store"
)

// claim sends claims, to wait for at most that long. A call that waits goes to one server only,
// because its caller asks again with less time to wait.
func (s *Store) claim(ctx context.Context, claims []store.Claim, wait time.Duration) (answers []leaseapi.Answer, silent bool, err error) {
	servers := len(s.address.servers)
	if wait > 0 {
		servers = 1
	}
	return s.call(ctx, "claim", func(timeout time.Duration) []byte {
		return leaseapi.WriteClaims(leaseapi.ClaimCall{Claims: claims, Wait: wait, Timeout: timeout})
	}, len(claims), servers)
}

// call makes one call of n elements. If a server is away, it asks the next one, up to that many,
// each once. Each gets an equal share of the time that is left, because a server that is frozen
// must leave time for the next. body writes the call's body for a share; 0 is not a limit. silent says
// that a server may have got the call, or may still get it, and did not answer.
func (s *Store) call(ctx context.Context, verb string, body func(timeout time.Duration) []byte, n, servers int) (answers []leaseapi.Answer, silent bool, err error) {
	if n == 0 {
		return nil, false, nil
	}
	for left := servers; left > 0; left-- {
		first := s.current.Load()
		within, timeout, cancel := share(ctx, left)
		var r reach
		answers, r, err = s.ask(within, s.server(first), verb, body(timeout), n)
		cancel()
		silent = silent || r == unanswered
		if r == answered {
			return answers, silent, err
		}
		s.leave(ctx, first)
		if ctx.Err() != nil {
			return nil, silent, err
		}
	}
	return nil, silent, err
}

// share returns a context for one of several servers, and how long it lasts; 0 for no limit.
func share(ctx context.Context, servers int) (context.Context, time.Duration, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return ctx, 0, func() {}
	}
	timeout := max(time.Until(end)/time.Duration(servers), time.Millisecond)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, timeout, cancel
}

// leave makes the next call go to the next server, because this one is away. If the caller stopped
// waiting before its time was over, that says nothing of the server.
func (s *Store) leave(ctx context.Context, first uint64) {
	if !errors.Is(ctx.Err(), context.Canceled) {
		s.current.CompareAndSwap(first, first+1)
	}
}

// server returns the server of a value of current.
func (s *Store) server(current uint64) string {
	return s.address.servers[current%uint64(len(s.address.servers))]
}

// reach is what became of a call to one server.
type reach int

const (
	answered   reach = iota
	unreached        // nothing was done; another server may answer
	unanswered       // it may have been done, or will be; another server may answer
)

// ask asks one server.
func (s *Store) ask(ctx context.Context, server, verb string, body []byte, n int) ([]leaseapi.Answer, reach, error) {
	text, r, err := s.post(ctx, server, verb, body)
	if err != nil {
		return nil, r, err
	}
	answers, err := leaseapi.ReadAnswers(text, n)
	if err != nil {
		err = fmt.Errorf("httpstore: %w", err)
	}
	return answers, answered, err
}

// post sends a body to one server and returns the answer.
func (s *Store) post(ctx context.Context, server, path string, body []byte) (text []byte, _ reach, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server+leaseapi.Version+"/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, answered, err
	}
	r.Header.Set("Content-Type", "application/json")
	s.authorize(r)
	resp, err := s.client.Do(r)
	if err != nil {
		if isDial(err) {
			return nil, unreached, unreachedError(ctx, withoutURL(err))
		}
		return nil, unanswered, unreachedError(ctx, withoutURL(err))
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, unanswered, noAnswer(ctx, "httpstore: the server's answer broke off: %w", err)
	case len(text) > maxAnswer:
		return nil, answered, fmt.Errorf("httpstore: the server's answer is longer than %d bytes", maxAnswer)
	case resp.StatusCode >= 500:
		refused, kind := refusal(resp, text)
		if kind == leaseapi.Stopping {
			return nil, unreached, refused
		}
		return nil, unanswered, refused
	case resp.StatusCode != http.StatusOK || isPage(resp):
		refused, _ := refusal(resp, text)
		return nil, answered, refused
	}
	return text, answered, nil
}

// isDial reports whether a request was never sent, because no connection could be made.
func isDial(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "dial"
}

// noAnswer returns the error of a call that got no answer. If ctx has ended, that is the reason.
func noAnswer(ctx context.Context, format string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf(format, err)
	}
	return errtype.New(errtype.Unreachable, format, err)
}

// unreachedError is noAnswer for a request that was not sent, or had no answer. It says what to do if
// nothing listens, or something else than dibs serve.
func unreachedError(ctx context.Context, err error) error {
	_, isPlain := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case isDial(err):
		return noAnswer(ctx, "httpstore: the server cannot be reached: %w (check that dibs serve runs and listens at the address, and that no firewall is in between)", err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return noAnswer(ctx, "httpstore: the server closed the connection and did not answer: %w (is it dibs serve? It may also have ended meanwhile)", err)
	case strings.Contains(err.Error(), "malformed HTTP"):
		return noAnswer(ctx, "httpstore: the server does not speak HTTP: %w (is it dibs serve?)", err)
	case isPlain, errors.Is(err, http.ErrSchemeMismatch):
		return noAnswer(ctx, "httpstore: the server does not speak TLS: %w (is it dibs serve with --tls-cert? Without it, write http instead of https)", err)
	}
	return noAnswer(ctx, "httpstore: %w", err)
}

// maxAnswer is the longest answer that is read, in bytes.
const maxAnswer = 128 << 20

// authorize adds the token.
func (s *Store) authorize(r *http.Request) {
	if s.address.secret != "" {
		r.Header.Set("Authorization", "Bearer "+s.address.secret)
	}
}

// withoutURL returns a transport's error without the URL, which says nothing that the rest
// does not.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// isPage reports whether an answer is a page for browsers, which some servers answer on every path.
func isPage(resp *http.Response) bool {
	return strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html")
}

// strange returns the error of an answer that dibs serve does not give.
func strange(resp *http.Response, text []byte) error {
	if strings.Contains(string(text), "HTTP request to an HTTPS server") || strings.Contains(string(text), "plain HTTP request was sent to HTTPS port") {
		return errtype.New(errtype.Unsupported, "httpstore: the server speaks HTTPS: write https instead of http in the URL")
	}
	answer := resp.Status
	if name := resp.Header.Get("Server"); name != "" {
		answer += fmt.Sprintf(" of the server %q", name)
	}
	return errtype.New(errtype.Unsupported, "httpstore: the server is not dibs serve: it answers with %s (check the host and the port in the URL)", answer)
}

// refusals are the types of errors by the status of a refusal.
var refusals = map[int]string{
	http.StatusUnauthorized:       errtype.Unauthorized,
	http.StatusForbidden:          errtype.Unauthorized,
	http.StatusTooManyRequests:    errtype.Busy,
	http.StatusServiceUnavailable: errtype.Unavailable,
}

// refusal returns the error of a call that was refused as a whole, and the name of the problem.
func refusal(resp *http.Response, text []byte) (err error, problem string) {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var p struct {
		Type, Title, Detail string
	}
	if kind != "application/problem+json" || json.Unmarshal(text, &p) != nil {
		return strange(resp, text), ""
	}
	_, problem, _ = strings.Cut(p.Type, "#")
	if resp.StatusCode == http.StatusRequestEntityTooLarge {
		return fmt.Errorf("httpstore: %w: %s (%d): %s", store.ErrTooLarge, p.Title, resp.StatusCode, p.Detail), problem
	}
	if what, ok := refusals[resp.StatusCode]; ok {
		return errtype.New(what, "httpstore: %s (%d): %s", p.Title, resp.StatusCode, p.Detail), problem
	}
	return fmt.Errorf("httpstore: %s (%d): %s", p.Title, resp.StatusCode, p.Detail), problem
}
