package httpstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dibs-go/dibs/internal/backend"
	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/store"
)

// Options are how a Store reaches its servers. The zero value and nil mean the defaults.
type Options struct {
	// Client sends the requests. Default: a client of its own, with HTTP/2 where the server
	// has TLS.
	Client *http.Client
}

// Store is the store of the servers. It is safe for concurrent use. Close it after its
// clients.
type Store struct {
	address *Address
	client  *http.Client
	own     *http.Transport // nil if the client is the caller's
	current atomic.Uint64   // the server that is asked first

	stop    context.CancelFunc
	stopped context.Context
	running sync.WaitGroup

	listeners backend.Listeners

	mu       sync.Mutex
	watching map[store.Token]*watch
}

var (
	_ store.Store    = (*Store)(nil)
	_ store.Notifier = (*Store)(nil)
	_ store.Batcher  = (*Store)(nil)
)

// Open returns the store of a URL (see Parse). It does not connect.
func Open(address string, o *Options) (*Store, error) {
	a, err := Parse(address)
	if err != nil {
		return nil, err
	}
	if o == nil {
		o = &Options{}
	}
	s := &Store{address: a, client: o.Client, watching: map[store.Token]*watch{}}
	s.stopped, s.stop = context.WithCancel(context.Background())
	if s.client == nil {
		s.own = newTransport(a.socket)
		s.client = &http.Client{Transport: s.own, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return s, nil
}

// newTransport returns a transport that dials the socket, if there is one.
func newTransport(socket string) *http.Transport {
	t := &http.Transport{
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 64,
		Proxy:               http.ProxyFromEnvironment,
	}
	if socket != "" {
		t.Proxy = nil
		var d net.Dialer
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) }
	}
	return t
}

// Batching says how a client calls this store.
func (s *Store) Batching() store.Batching {
	return store.Batching{Size: leaseapi.MaxElements / 2, Parallel: 4}
}

// Close ends the calls under way in the background.
func (s *Store) Close() error {
	s.mu.Lock()
	s.stop() // under the lock, so that watch begins no call after that
	s.mu.Unlock()
	s.running.Wait()
	if s.own != nil {
		s.own.CloseIdleConnections()
	}
	return nil
}

// Claim sends the claims in one call.
func (s *Store) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	valid, at := validOf(claims, (*store.Claim).Validate, func(i int, err error) { answers[i].Err = err })
	got, err := s.call(ctx, "claim", leaseapi.WriteClaims(valid, 0), len(valid))
	if err != nil {
		return err
	}
	for j, i := range at {
		if answers[i], err = got[j].Claim(); err != nil {
			return err
		}
	}
	s.watch(claims, answers)
	return nil
}

// Renew sends the renewals in one call, or in several if their progress is long.
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	valid, at := validOf(renewals, (*store.Renewal).Validate, func(i int, err error) { errs[i] = err })
	return sendAll(ctx, s, "renew", valid, at, errs, leaseapi.WriteRenewals, func(r *store.Renewal) int { return len(r.Progress) })
}

// Settle sends the settlements in one call, or in several if their records are long.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	for i := range settlements {
		s.unwatch(settlements[i].Token)
	}
	valid, at := validOf(settlements, (*store.Settlement).Validate, func(i int, err error) { errs[i] = err })
	return sendAll(ctx, s, "settle", valid, at, errs, leaseapi.WriteSettlements, func(x *store.Settlement) int { return len(x.Data) })
}

// validOf returns the elements that can be sent, and their places.
func validOf[E any](all []E, validate func(*E) error, failed func(int, error)) (valid []E, at []int) {
	for i := range all {
		if err := validate(&all[i]); err != nil {
			failed(i, err)
			continue
		}
		valid, at = append(valid, all[i]), append(at, i)
	}
	return valid, at
}

// maxData is how many bytes of data the elements of one call may have, unless it has one element:
// as base64 they are well below what a server takes by default (--max-body).
const maxData = 8 << 20

// sendAll sends elements whose answers are errors, in calls of at most maxData. An element that is
// too large for the server fails alone.
func sendAll[E any](ctx context.Context, s *Store, verb string, all []E, at []int, errs []error, write func([]E) []byte, size func(*E) int) error {
	for from := 0; from < len(all); {
		to, bytes := from+1, size(&all[from])
		for ; to < len(all) && bytes+size(&all[to]) <= maxData; to++ {
			bytes += size(&all[to])
		}
		got, err := s.call(ctx, verb, write(all[from:to]), to-from)
		switch {
		case to == from+1 && errors.Is(err, store.ErrTooLarge):
			errs[at[from]] = err
		case err != nil:
			return err
		}
		for j := range got {
			errs[at[from+j]] = got[j].Error.Err()
		}
		from = to
	}
	return nil
}

// call makes one call of n elements. If the server is away, it asks the next one, each once.
func (s *Store) call(ctx context.Context, verb string, body []byte, n int) ([]leaseapi.Answer, error) {
	if n == 0 {
		return nil, nil
	}
	var err error
	for range s.address.servers {
		first := s.current.Load()
		var answers []leaseapi.Answer
		var away bool
		answers, away, err = s.ask(ctx, s.server(first), verb, body, n)
		if !away || ctx.Err() != nil {
			return answers, err
		}
		s.current.CompareAndSwap(first, first+1)
	}
	return nil, err
}

// server returns the server of a value of current.
func (s *Store) server(current uint64) string {
	return s.address.servers[current%uint64(len(s.address.servers))]
}

// ask asks one server. away says that another server may answer.
func (s *Store) ask(ctx context.Context, server, verb string, body []byte, n int) (answers []leaseapi.Answer, away bool, err error) {
	text, away, err := s.post(ctx, server, verb, body)
	if err != nil {
		return nil, away, err
	}
	if answers, err = leaseapi.ReadAnswers(text, n); err != nil {
		err = fmt.Errorf("httpstore: %w", err)
	}
	return answers, false, err
}

// post sends a body to one server and returns the answer.
func (s *Store) post(ctx context.Context, server, path string, body []byte) (text []byte, away bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server+leaseapi.Version+"/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	r.Header.Set("Content-Type", "application/json")
	s.authorize(r)
	resp, err := s.client.Do(r)
	if err != nil {
		return nil, true, unreached(ctx, withoutURL(err))
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, true, noAnswer(ctx, "httpstore: the server's answer broke off: %w", err)
	case len(text) > maxAnswer:
		return nil, false, fmt.Errorf("httpstore: the server's answer is longer than %d bytes", maxAnswer)
	case resp.StatusCode != http.StatusOK:
		return nil, resp.StatusCode >= 500, refusal(resp, text)
	}
	return text, false, nil
}

// noAnswer returns the error of a call that got no answer. If ctx has ended, that is the reason.
func noAnswer(ctx context.Context, format string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf(format, err)
	}
	return errtype.New(errtype.Unreachable, format, err)
}

// unreached is noAnswer for a request that was not sent, or had no answer. It says what to do if
// nothing listens.
func unreached(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
		return noAnswer(ctx, "httpstore: the server cannot be reached: %w (check that dibs serve runs and listens at the address, and that no firewall is in between)", err)
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

// refusals are the types of errors by the status of a refusal.
var refusals = map[int]string{
	http.StatusUnauthorized:       errtype.Unauthorized,
	http.StatusForbidden:          errtype.Unauthorized,
	http.StatusTooManyRequests:    errtype.Busy,
	http.StatusServiceUnavailable: errtype.Unavailable,
}

// refusal returns the error of a call that was refused as a whole.
func refusal(resp *http.Response, text []byte) error {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var p struct {
		Title, Detail string
	}
	if kind != "application/problem+json" || json.Unmarshal(text, &p) != nil {
		return errtype.New(errtype.Unsupported, "httpstore: what answers with %s is no dibs serve", resp.Status)
	}
	if resp.StatusCode == http.StatusRequestEntityTooLarge {
		return fmt.Errorf("httpstore: %w: %s (%d): %s", store.ErrTooLarge, p.Title, resp.StatusCode, p.Detail)
	}
	if what, ok := refusals[resp.StatusCode]; ok {
		return errtype.New(what, "httpstore: %s (%d): %s", p.Title, resp.StatusCode, p.Detail)
	}
	return fmt.Errorf("httpstore: %s (%d): %s", p.Title, resp.StatusCode, p.Detail)
}

// Version asks the server what it is: "dibs serve v1.0.0".
func (s *Store) Version(ctx context.Context) (string, error) {
	resp, err := s.get(ctx, "/version")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err != nil {
		return "", fmt.Errorf("httpstore: %w", err)
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(string(text)), "dibs "), " ")
	return "dibs serve " + name, nil
}
