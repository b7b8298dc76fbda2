package idempotency

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
)

// TransportOptions say how a Transport retries. The zero value, and nil, mean the defaults.
type TransportOptions struct {
	// Base sends the requests. Default: http.DefaultTransport.
	Base http.RoundTripper

	// Key makes the key of a request that has none: 1 to 255 printable ASCII characters, sent as a
	// structured-field String. Default: 26 random characters.
	Key func(*http.Request) string

	// Attempts is how often a request is sent at most. Default: 5.
	Attempts int
	// Backoff is the pause after the first attempt. Each pause is twice as long as the one before,
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

func (o *TransportOptions) withDefaults() (TransportOptions, error) {
	var r TransportOptions
	if o != nil {
		r = *o
	}
	if r.Base == nil {
		r.Base = http.DefaultTransport
	}
	if r.Key == nil {
		r.Key = func(*http.Request) string { return rand.Text() }
	}
	r.Attempts = cmp.Or(r.Attempts, 5)
	r.Backoff = cmp.Or(r.Backoff, 100*time.Millisecond)
	r.MaxBackoff = cmp.Or(r.MaxBackoff, max(30*time.Second, r.Backoff))
	r.Budget = cmp.Or(r.Budget, 0.2)
	r.MaxBody = cmp.Or(r.MaxBody, 1<<20)
	return r, cmp.Or(
		between("TransportOptions", "Attempts", r.Attempts, 1, math.MaxInt),
		between("TransportOptions", "Backoff", r.Backoff, 0, r.MaxBackoff),
		between("TransportOptions", "Budget", r.Budget, 0, math.MaxFloat64),
		between("TransportOptions", "MaxBody", r.MaxBody, 0, math.MaxInt64-1),
	)
}

// Transport is an http.RoundTripper for clients. It gives every request with an unsafe method an
// Idempotency-Key, keeps the key across retries, and retries what is safe to retry:
//
//   - an attempt that got no answer,
//   - 409, 429 and 503 with a Retry-After.
//
// It returns all other answers. 422 (key reused), 410 (answer not kept) and 409 without Retry-After
// (outcome unknown) do not change with a retry. The server must honour the key: otherwise an attempt
// that got no answer may have had an effect.
//
// If an answer breaks off while it is read, the Transport retries by the same rules, with the attempts
// and the budget that are left. While the request still runs, it waits as the server's Retry-After
// says. Then the server replays the answer, and the caller reads on, up to the trailer. If the retry
// gets no replay, or that of another answer, Read returns an error that says so and wraps the first
// one.
//
// Safe methods get no key, and are also retried. A request that has a key keeps it. A client that
// restarts and sends the same key again gets the answer of its first try.
type Transport struct {
	options TransportOptions
	budget  budget
}

// NewTransport returns a Transport, or an *OptionError if an option is wrong.
func NewTransport(o *TransportOptions) (*Transport, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Transport{options: options, budget: budget{share: options.Budget, left: budgetInARow}}, nil
}

// RoundTrip implements http.RoundTripper. It returns the last attempt's answer or error. If r's
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
	s := &sending{t: t, ctx: r.Context(), again: again, left: t.options.Attempts}
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
	if !isSafe(r.Method) && r.Header.Get(keyField) == "" && r.Header.Get(xKeyField) == "" {
		field, err := quoteKey(t.options.Key(r))
		if err != nil {
			return nil, nil, err
		}
		request.Header.Set(keyField, field)
		request.Header.Del(xKeyField) // an empty one, which is malformed
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
	if r.URL.Scheme != "http" && r.URL.Scheme != "https" || r.URL.Host == "" || r.Method != "" && !isToken(r.Method) {
		return false
	}
	control := func(c rune) bool { return c < ' ' && c != '\t' || c == '\x7f' }
	for _, fields := range []http.Header{r.Header, r.Trailer} {
		for name, lines := range fields {
			if !isToken(name) || slices.ContainsFunc(lines, func(line string) bool { return strings.ContainsFunc(line, control) }) {
				return false
			}
		}
	}
	return true
}

// isSafe reports whether a request with the method changes nothing.
func isSafe(method string) bool { return method == "" || slices.Contains(safeMethods, method) }

// quoteKey returns a key as a structured-field String (RFC 9651, section 3.3.3).
func quoteKey(key string) (string, error) {
	if err := checkKey(key); err != nil {
		return "", fmt.Errorf("idempotency: TransportOptions.Key made a key of %d characters that no server accepts: %w", len(key), err)
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`, nil
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
