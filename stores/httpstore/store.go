package httpstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// Options are how a Store reaches its servers. The zero value and nil mean the defaults.
type Options struct {
	// Client sends the requests. Default: a client of its own, with HTTP/1.1. Over HTTP/2, a server
	// that was frozen may carry out a claim that its caller has given up.
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

	listeners storekit.Listeners

	mu       sync.Mutex
	watching map[store.Token]*watch
	doubts   map[store.Token]time.Time  // until when a claim may come late; see late.go
	late     map[store.Token]*lateClaim // those that were settled
	undoing  bool                       // undoAll runs
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
	s := &Store{address: a, client: o.Client, watching: map[store.Token]*watch{}, doubts: map[store.Token]time.Time{}, late: map[store.Token]*lateClaim{}}
	s.stopped, s.stop = context.WithCancel(context.Background())
	if s.client == nil {
		s.own = newTransport(a.socket)
		s.client = &http.Client{Transport: s.own, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return s, nil
}

// newTransport returns a transport that dials the socket, if there is one. It speaks HTTP/1.1,
// because then a caller that gives up closes its connection, and a server that was frozen
// meanwhile sees that before it carries the call out.
func newTransport(socket string) *http.Transport {
	t := &http.Transport{
		Protocols:           new(http.Protocols),
		MaxIdleConnsPerHost: 64,
		Proxy:               http.ProxyFromEnvironment,
	}
	t.Protocols.SetHTTP1(true)
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
	s.claimed(valid)
	got, silent, err := s.claim(ctx, valid, 0)
	if silent {
		s.doubt(valid)
	}
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
	got, err := sendAll(ctx, s, "renew", valid, leaseapi.WriteRenewals, func(r *store.Renewal) int { return len(r.Progress) },
		func(_ *store.Renewal, err error, _ bool) error { return err })
	for j := range got {
		errs[at[j]] = got[j]
	}
	return err
}

// Settle sends the settlements in one call, or in several if their records are long.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	for i := range settlements {
		s.unwatch(settlements[i].Token)
	}
	valid, at := validOf(settlements, (*store.Settlement).Validate, func(i int, err error) { errs[i] = err })
	got, err := sendAll(ctx, s, "settle", valid, leaseapi.WriteSettlements, func(x *store.Settlement) int { return len(x.Data) },
		func(x *store.Settlement, err error, silent bool) error {
			switch lost := errors.Is(err, store.ErrLost); {
			case err == nil || !silent, lost && x.Outcome == store.Keep: // a record may be written twice
				return err
			case lost:
				return errSettled
			}
			return errtype.New(errtype.Unreachable, "httpstore: a server did not answer the settlement, and another one refused it (%v): it may have been carried out", err)
		})
	for j := range got {
		errs[at[j]] = got[j]
	}
	s.undoLate(valid[:len(got)], got)
	return err
}

// errSettled is the error of a settlement that was sent to two servers. It is not
// store.Definite.
var errSettled = errtype.New(errtype.Unreachable, "httpstore: a server did not answer the settlement, and another one has no lease of the token: it may have been settled")

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

// sendAll sends elements whose answers are errors, in calls of at most maxData, and returns the
// errors of those that were answered. An element that is too large for the server fails alone.
// answer returns the error of an element; silent is that of its call.
func sendAll[E any](ctx context.Context, s *Store, verb string, all []E, write func([]E) []byte, size func(*E) int, answer func(x *E, err error, silent bool) error) (errs []error, err error) {
	for from := 0; from < len(all); from = len(errs) {
		to, bytes := from+1, size(&all[from])
		for ; to < len(all) && bytes+size(&all[to]) <= maxData; to++ {
			bytes += size(&all[to])
		}
		body := write(all[from:to])
		got, silent, err := s.call(ctx, verb, func(time.Duration) []byte { return body }, to-from, len(s.address.servers))
		switch {
		case to == from+1 && errors.Is(err, store.ErrTooLarge):
			errs = append(errs, answer(&all[from], err, silent))
		case err != nil:
			return errs, err
		}
		for j := range got {
			errs = append(errs, answer(&all[from+j], got[j].Error.Err(), silent))
		}
	}
	return errs, nil
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
