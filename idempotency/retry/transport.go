// Package retry is for HTTP clients: its Transport gives each request a key, and sends the request again
// when that is safe, so that a guarded server runs it once.
//
//	transport, err := retry.New(nil)
//	client := &http.Client{Transport: transport}
package retry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/content"
)

// Options say how a Transport retries. The zero value, and nil, mean the defaults.
type Options struct {
	// Base sends the requests. Default: http.DefaultTransport.
	Base http.RoundTripper

	// Key makes the key of a request that has none: 1 to 255 printable ASCII characters, sent as a
	// structured-field String. Default: 26 random characters.
	Key func(*http.Request) string

	// MaxTries is how often a request is sent at most. Default: 5.
	MaxTries int
	// Backoff is the pause after the first try. Each pause is twice as long as the one before,
	// up to MaxBackoff, and never shorter than the answer's Retry-After. A random part keeps
	// clients that failed together from coming back together. An answer whose Retry-After is longer
	// than MaxBackoff is returned to the caller. Defaults: 100 ms and 30 s.
	Backoff    time.Duration
	MaxBackoff time.Duration

	// Budget is the share of requests that may be retries in the long run, so that retries do not
	// add to the load of an origin that fails. Ten retries are always allowed in a row. Default:
	// 0.2. 1 or more means no limit.
	Budget float64

	// MaxBody is the longest body, in bytes, that is kept to be sent again if the request cannot
	// make it anew (http.Request.GetBody). A request with a longer body is sent once. Default: 1
	// MiB.
	MaxBody int64
}

func (o *Options) withDefaults() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if r.Base == nil {
		r.Base = http.DefaultTransport
	}
	if r.Key == nil {
		r.Key = func(*http.Request) string { return rand.Text() }
	}
	r.MaxTries = cmp.Or(r.MaxTries, 5)
	r.Backoff = cmp.Or(r.Backoff, 100*time.Millisecond)
	r.MaxBackoff = cmp.Or(r.MaxBackoff, max(30*time.Second, r.Backoff))
	r.Budget = cmp.Or(r.Budget, 0.2)
	r.MaxBody = cmp.Or(r.MaxBody, 1<<20)
	return r, r.fault()
}

// fault returns an error that names the first option that is wrong.
func (o *Options) fault() error {
	switch {
	case o.MaxTries < 1:
		return fmt.Errorf("retry: Options.MaxTries: %d is too small; it must be at least 1", o.MaxTries)
	case o.Backoff < 0:
		return fmt.Errorf("retry: Options.Backoff: %v is too short; it must be at least 0s", o.Backoff)
	case o.Backoff > o.MaxBackoff:
		return fmt.Errorf("retry: Options.Backoff: %v is too long; it may be at most MaxBackoff, %v", o.Backoff, o.MaxBackoff)
	case !(o.Budget >= 0): // which NaN is not
		return fmt.Errorf("retry: Options.Budget: %v is too small; it must be at least 0", o.Budget)
	case o.MaxBody < 0 || o.MaxBody == math.MaxInt64:
		return fmt.Errorf("retry: Options.MaxBody: %d is not a number of bytes from 0 to %d", o.MaxBody, math.MaxInt64-1)
	}
	return nil
}

// Transport is an http.RoundTripper for clients. It gives every request with an unsafe method an
// Idempotency-Key, keeps the key across retries, and retries what is safe to retry:
//
//   - a try that got no answer,
//   - 409, 429 and 503 with a Retry-After.
//
// It returns all other answers. 422 (key reused), 410 (answer not kept) and 409 without Retry-After
// (outcome unknown) do not change with a retry. The server must honour the key: otherwise a try
// that got no answer may have had an effect.
//
// If an answer breaks off while it is read, the Transport retries by the same rules, with the tries
// and the budget that are left. While the request still runs, it waits as the server's Retry-After
// says. Then the server replays the answer, and the caller reads on, up to the trailer. If the retry
// gets no replay, or that of another answer, Read returns an error that says so and wraps the first
// one.
//
// Safe methods get no key, and are also retried. A request that has a key keeps it. A client that
// restarts and sends the same key again gets the answer of its first try.
type Transport struct {
	options Options
	budget  budget
}

// New returns a Transport, or an error that names the option that is wrong.
func New(o *Options) (*Transport, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Transport{options: options, budget: budget{share: options.Budget, left: budgetInARow}}, nil
}

// RoundTrip implements http.RoundTripper. It returns the last try's answer or error. If r's
// context ends during a pause, it returns the context's cause.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	request, again, err := t.prepare(r)
	if err != nil {
		closeBody(r)
		return nil, err
	}
	if !sendable(request) {
		again = nil // Base will refuse it every time
	}
	t.budget.add()
	s := &sending{t: t, ctx: r.Context(), again: again, left: t.options.MaxTries}
	response, stopped, err := s.send(request)
	if err != nil || stopped != nil || again == nil || isSafe(r.Method) || response.Body == http.NoBody || response.StatusCode == http.StatusSwitchingProtocols {
		return response, err
	}
	response.Body = newResumedBody(s, response)
	return response, nil
}

// prepare returns the request to send, with its key, and a function that makes it again; nil if the
// request can be sent only once.
func (t *Transport) prepare(r *http.Request) (request *http.Request, again func(context.Context) (*http.Request, error), err error) {
	request = r.Clone(r.Context())
	if !isSafe(r.Method) && r.Header.Get(content.KeyField) == "" && r.Header.Get(content.XKeyField) == "" {
		key := t.options.Key(r)
		field, err := content.QuoteKey(key)
		if err != nil {
			return nil, nil, fmt.Errorf("retry: Options.Key made a key of %d characters that no server accepts: %w", len(key), err)
		}
		request.Header.Set(content.KeyField, field)
		request.Header.Del(content.XKeyField) // an empty one, which is malformed
	}
	getBody := r.GetBody
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		getBody = func() (io.ReadCloser, error) { return r.Body, nil }
	case getBody == nil:
		head, err := io.ReadAll(io.LimitReader(r.Body, t.options.MaxBody+1))
		if err != nil {
			return nil, nil, err
		}
		if int64(len(head)) > t.options.MaxBody {
			request.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(bytes.NewReader(head), r.Body), r.Body}
			return request, nil, nil
		}
		closeBody(r)
		getBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(head)), nil }
		request.Body, _ = getBody()
	}
	return request, func(ctx context.Context) (*http.Request, error) {
		body, err := getBody()
		if err != nil {
			return nil, err
		}
		next := request.Clone(ctx)
		next.Body = body
		return next, nil
	}, nil
}

// sendable reports whether a request can be sent over HTTP at all.
func sendable(r *http.Request) bool {
	if r.URL.Scheme != "http" && r.URL.Scheme != "https" || r.URL.Host == "" || r.Method != "" && !content.IsToken(r.Method) {
		return false
	}
	control := func(c rune) bool { return c < ' ' && c != '\t' || c == '\x7f' }
	for _, fields := range []http.Header{r.Header, r.Trailer} {
		for name, lines := range fields {
			if !content.IsToken(name) || slices.ContainsFunc(lines, func(line string) bool { return strings.ContainsFunc(line, control) }) {
				return false
			}
		}
	}
	return true
}

// isSafe reports whether a request with the method changes nothing.
func isSafe(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// closeBody keeps a RoundTripper's promise to close the request's body.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// budgetInARow is how many retries may always be made in a row.
const budgetInARow = 10

// A budget allows a share of the requests to be retries.
type budget struct {
	share float64

	mu   sync.Mutex
	left float64
}

// add counts a request.
func (b *budget) add() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = min(b.left+b.share, budgetInARow)
}

// take reports whether one more retry is allowed, and counts it.
func (b *budget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.share < 1 && b.left < 1 {
		return false
	}
	b.left--
	return true
}
