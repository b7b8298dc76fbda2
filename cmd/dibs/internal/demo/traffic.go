package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
)

// The traffic: orders, a few milliseconds apart, each sent by several clients at once. A
// client gives up on an answer after a timeout and retries.
const (
	orders  = 150
	copies  = 3
	spacing = 6 * time.Millisecond
	timeout = 250 * time.Millisecond
	limit   = time.Minute // of a client's retries
)

// traffic sends the orders to two addresses, and counts the answers.
type traffic struct {
	client  *http.Client
	targets [2]string
	// unknown, unless nil, is called once for each attempt whose outcome is unknown, with
	// the URI of the attempt.
	unknown func(ctx context.Context, c charge, instance string) error

	requests   atomic.Int64
	replays    atomic.Int64
	conflicts  atomic.Int64
	errors     atomic.Int64
	resolved   atomic.Int64
	unanswered atomic.Int64 // clients

	seen sync.Map // of attempts whose outcome is unknown
}

func newTraffic(targets [2]string) *traffic {
	return &traffic{
		client:  &http.Client{Timeout: timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 2 * orders}},
		targets: targets,
	}
}

// amount returns the amount of an order in cents.
func amount(i int) int { return 500 + 37*i }

// orderName returns the name of an order.
func orderName(i int) string {
	if i == orders/2 {
		return crashOrder
	}
	return fmt.Sprintf("order-%d", i+1)
}

// send sends all orders, and waits until every client has an answer or has given up.
func (s *traffic) send(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer s.client.CloseIdleConnections()
	var clients sync.WaitGroup
	for i := range orders {
		c := charge{Order: orderName(i), Amount: amount(i)}
		copies := copies
		if c.Order == crashOrder {
			copies = 1 // so that the proxy that is killed holds its key
		}
		for n := range copies {
			clients.Go(func() { s.order(ctx, c, n%2) })
		}
		_ = backoff.Sleep(ctx, spacing)
	}
	clients.Wait()
}

// order is one client. It sends its order until it has an answer.
func (s *traffic) order(ctx context.Context, c charge, to int) {
	for ctx.Err() == nil {
		wait, done := s.post(ctx, c, s.targets[to])
		if done {
			return
		}
		if wait == 0 {
			// Something broke: the client tries the other proxy soon.
			to = 1 - to
			wait = 20*time.Millisecond + rand.N(30*time.Millisecond)
		}
		_ = backoff.Sleep(ctx, wait)
	}
	s.unanswered.Add(1)
}

// post sends one request. It returns how long the server asks the client to wait, 0 for
// nothing, and whether the order is done.
func (s *traffic) post(ctx context.Context, c charge, target string) (wait time.Duration, done bool) {
	s.requests.Add(1)
	status, header, answer, err := s.exchange(ctx, c, target)
	switch {
	case err == nil && status == http.StatusCreated:
		if header.Get("Idempotent-Replayed") == "true" {
			s.replays.Add(1)
		}
		return 0, true
	case err == nil && status == http.StatusConflict:
		s.conflicts.Add(1)
		return s.conflict(ctx, c, header.Get("Retry-After"), answer), false
	}
	s.errors.Add(1)
	return 0, false
}

func (s *traffic) exchange(ctx context.Context, c charge, target string) (status int, header http.Header, answer []byte, err error) {
	body, err := json.Marshal(c)
	if err != nil {
		return 0, nil, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target+"/charges", bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	req.Host = "shop.example" // a key belongs to a host, and both proxies serve this one
	req.GetBody = nil         // because net/http would retry, and only the client's own retries are counted
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", `"`+c.Order+`"`)
	res, err := s.client.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	return res.StatusCode, res.Header, answer, err
}

// conflict returns how long to wait after a 409. If the outcome is unknown, it has the
// request resolved.
func (s *traffic) conflict(ctx context.Context, c charge, retryAfter string, problem []byte) time.Duration {
	if wait, err := time.ParseDuration(retryAfter + "s"); err == nil {
		return wait
	}
	var p struct{ Instance string }
	if json.Unmarshal(problem, &p) != nil || p.Instance == "" || s.unknown == nil {
		return 0
	}
	once, _ := s.seen.LoadOrStore(p.Instance, new(sync.Once))
	once.(*sync.Once).Do(func() {
		if s.unknown(ctx, c, p.Instance) == nil {
			s.resolved.Add(1)
		}
	})
	return 0
}
