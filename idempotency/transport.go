package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// TransportOptions say how a Transport retries. The zero value, and nil, mean
// the defaults.
type TransportOptions struct {
	// Base sends the requests. Default: http.DefaultTransport.
	Base http.RoundTripper

	// Key makes the key of a request that has none. It is sent as a
	// structured-field String: 1 to 255 printable ASCII characters. Default: 26
	// random characters.
	Key func(*http.Request) string

	// Attempts is how often a request is sent at most. Default: 5.
	Attempts int
	// Backoff is how long to wait after the first attempt; each time twice as
	// long, up to MaxBackoff, and never less than the answer's Retry-After. A
	// random part is added, so that clients who failed together do not come
	// back together. An answer that asks for more than MaxBackoff is returned
	// as it is. Defaults: 100 ms and 30 s.
	Backoff    time.Duration
	MaxBackoff time.Duration

	// Budget is what share of the requests may be retries in the long run, so
	// that an origin in trouble is not buried under them; ten may always be made
	// in a row. Default: 0.2. 1 or more is no limit.
	Budget float64

	// MaxBody is the largest body, in bytes, that is kept to be sent again where
	// the request cannot make it anew (http.Request.GetBody). A request with a
	// larger one is sent once. Default: 1 MiB.
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
	switch {
	case r.Attempts < 1:
		return r, fmt.Errorf("idempotency: TransportOptions.Attempts is %d; it must be at least 1", r.Attempts)
	case r.Backoff < 0 || r.MaxBackoff < r.Backoff:
		return r, fmt.Errorf("idempotency: TransportOptions.Backoff is %v and MaxBackoff is %v; they must not be negative nor fall",
			r.Backoff, r.MaxBackoff)
	case r.Budget < 0:
		return r, fmt.Errorf("idempotency: TransportOptions.Budget is %v; it must not be negative", r.Budget)
	case r.MaxBody < 0:
		return r, fmt.Errorf("idempotency: TransportOptions.MaxBody is %d; it must not be negative", r.MaxBody)
	}
	return r, nil
}

// Transport is the client's side: an http.RoundTripper that gives every
// request with an unsafe method an Idempotency-Key, keeps it across retries,
// and retries what is safe to retry:
//
//   - an attempt that got no answer,
//   - 409, 429 and 503 with a Retry-After.
//
// It never retries what is not: 422 (the key was used for something else), 410
// (done, but the answer was not kept), 409 without Retry-After (the outcome of
// an earlier attempt is unknown, or the application's own conflict), nor any
// other answer. The server has to honour the key; behind one that does not, an
// attempt that got no answer may have had an effect all the same.
//
// An answer that breaks off while it is read is fetched again, and read on where it broke
// off: the server replays it. The reader sees an error if that is another answer.
//
// Safe methods get no key and are retried likewise. A request that has a key
// keeps it: send the same key again after a restart of the client, and the
// retry goes on where it ended.
type Transport struct {
	options TransportOptions
	budget  budget
}

// NewTransport returns a Transport. The error names the option that is wrong.
func NewTransport(o *TransportOptions) (*Transport, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Transport{options: options, budget: budget{share: options.Budget, left: budgetInARow}}, nil
}

// RoundTrip implements http.RoundTripper. It returns the last attempt's answer
// or error, and the context's cause when that ended while it waited.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	request, again, err := t.prepare(r)
	if err != nil {
		return nil, err
	}
	if s := r.URL.Scheme; s != "http" && s != "https" {
		again = nil // Base does not know it, and will not in a moment
	}
	t.budget.request()
	backoff := t.options.Backoff
	for attempt := 1; ; attempt++ {
		response, err := t.options.Base.RoundTrip(request)
		wait, retry := t.retry(response, err, backoff)
		if !retry && err == nil && again != nil && !slices.Contains(safeMethods, cmp.Or(r.Method, http.MethodGet)) && response.Body != http.NoBody && response.StatusCode != http.StatusSwitchingProtocols {
			response.Body = newResumedBody(response, t.options.Attempts-attempt, func() (*http.Response, error) { return t.fetchAgain(again) })
		}
		if !retry || again == nil || attempt == t.options.Attempts || r.Context().Err() != nil {
			return response, err
		}
		if deadline, ok := r.Context().Deadline(); ok && time.Until(deadline) < wait || !t.budget.retry() {
			return response, err
		}
		next, cannot := again()
		if cannot != nil {
			return response, err
		}
		request = next
		discard(response)
		if err := sleep(r.Context(), wait); err != nil {
			closeBody(request)
			return nil, err
		}
		backoff = min(2*backoff, t.options.MaxBackoff)
	}
}

// errBudget: no more retries are allowed at the moment.
var errBudget = errors.New("idempotency: the budget of retries is spent")

// fetchAgain sends the request once more, for an answer that broke off.
func (t *Transport) fetchAgain(again func() (*http.Request, error)) (*http.Response, error) {
	if !t.budget.retry() {
		return nil, errBudget
	}
	request, err := again()
	if err != nil {
		return nil, err
	}
	return t.options.Base.RoundTrip(request)
}

// prepare returns the request to send, with its key, and how to make it again;
// nil when it cannot be.
func (t *Transport) prepare(r *http.Request) (request *http.Request, again func() (*http.Request, error), err error) {
	request = r.Clone(r.Context())
	if !slices.Contains(safeMethods, cmp.Or(r.Method, http.MethodGet)) && r.Header.Get("Idempotency-Key") == "" && r.Header.Get("X-Idempotency-Key") == "" {
		field, err := quoteKey(t.options.Key(r))
		if err != nil {
			closeBody(r)
			return nil, nil, err
		}
		request.Header.Set("Idempotency-Key", field)
		request.Header.Del("X-Idempotency-Key") // an empty one, which is malformed
	}
	getBody := r.GetBody
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return request, func() (*http.Request, error) { return request.Clone(r.Context()), nil }, nil
	case getBody == nil:
		head, err := io.ReadAll(io.LimitReader(r.Body, t.options.MaxBody+1))
		if err != nil {
			closeBody(r)
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
		if request.Body, err = getBody(); err != nil {
			return nil, nil, err
		}
	}
	return request, func() (*http.Request, error) {
		body, err := getBody()
		if err != nil {
			return nil, err
		}
		next := request.Clone(r.Context())
		next.Body = body
		return next, nil
	}, nil
}

// retry says whether an attempt may be made again, and after how long.
func (t *Transport) retry(response *http.Response, err error, backoff time.Duration) (time.Duration, bool) {
	wait := backoff/2 + mathrand.N(backoff/2+1)
	if err != nil {
		// A server that cannot prove who it is will not be able to in a moment.
		_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
		return wait, !untrusted
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
	if !ok || after > t.options.MaxBackoff {
		return 0, false
	}
	return max(wait, after+mathrand.N(backoff/2+1)), true
}

// retryAfter reads Retry-After (RFC 9110 §10.2.3): seconds, or a date.
func retryAfter(response *http.Response) (time.Duration, bool) {
	field := strings.TrimSpace(response.Header.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(field, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	if date, err := http.ParseTime(field); err == nil {
		return max(time.Until(date), 0), true
	}
	return 0, false
}

// quoteKey writes a key as a structured-field String (RFC 9651 §3.3.3).
func quoteKey(key string) (string, error) {
	if len(key) < 1 || len(key) > 255 {
		return "", fmt.Errorf("idempotency: TransportOptions.Key made a key of %d characters; it must have 1 to 255", len(key))
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(key) {
		c := key[i]
		if c < ' ' || c > '~' {
			return "", fmt.Errorf("idempotency: TransportOptions.Key made a key with the byte %#x; it must be printable ASCII", c)
		}
		if c == '"' || c == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	b.WriteByte('"')
	return b.String(), nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// discardPatience is how long an answer that is not wanted is read at most.
const discardPatience = 100 * time.Millisecond

// discard closes an answer that is not wanted. It reads it first, if it is
// short, so that its connection can be used again.
func discard(response *http.Response) {
	if response == nil {
		return
	}
	if n := response.ContentLength; n > 0 && n <= 64<<10 {
		// Closing ends a read that hangs.
		patience := time.AfterFunc(discardPatience, func() { _ = response.Body.Close() })
		_, _ = io.CopyN(io.Discard, response.Body, n)
		patience.Stop()
	}
	_ = response.Body.Close()
}

// closeBody keeps a RoundTripper's promise to close the request's body.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// budgetInARow is how many retries may always be made in a row.
const budgetInARow = 10

// budget allows so many retries for so many requests.
type budget struct {
	share float64

	mu   sync.Mutex
	left float64
}

func (b *budget) request() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = min(b.left+b.share, budgetInARow)
}

// retry reports whether one more may be made.
func (b *budget) retry() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.share >= 1 {
		return true
	}
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
