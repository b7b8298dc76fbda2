package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The storm: so many orders, a few milliseconds apart, each sent by several
// clients at once, which give up on an answer after patience and retry.
const (
	orders   = 150
	copies   = 3
	spacing  = 6 * time.Millisecond
	patience = 250 * time.Millisecond
	giveUp   = time.Minute // whatever else the machine does
)

// storm is one run of it against two addresses.
type storm struct {
	client  *http.Client
	targets [2]string
	// unknown is called, once for each attempt, with an order whose outcome is
	// unknown and the URI that names the attempt. nil where that cannot be.
	unknown func(ctx context.Context, c charge, instance string) error

	requests  atomic.Int64
	replays   atomic.Int64
	conflicts atomic.Int64
	errors    atomic.Int64
	settled   atomic.Int64
	failed    atomic.Int64 // clients that got no answer in the end

	mu   sync.Mutex
	seen map[string]*sync.Once // of unknown, by instance
}

func newStorm(targets [2]string) *storm {
	return &storm{
		client: &http.Client{
			Timeout:   patience,
			Transport: &http.Transport{MaxIdleConnsPerHost: 2 * orders},
		},
		targets: targets,
		seen:    make(map[string]*sync.Once),
	}
}

// amount of an order, in cents.
func amount(i int) int { return 500 + 37*i }

// blow sends all orders and waits until every client has its answer or has
// given up.
func (s *storm) blow(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, giveUp)
	defer cancel()
	defer s.client.CloseIdleConnections()
	var clients sync.WaitGroup
	pace := time.NewTicker(spacing)
	defer pace.Stop()
	for i := range orders {
		c := charge{Order: fmt.Sprintf("order-%d", i+1), Amount: amount(i)}
		copies := copies
		if i == orders/2 {
			// This one goes to the first proxy, alone, so that the proxy that
			// is killed holds it.
			c.Order, copies = crashOrder, 1
		}
		for n := range copies {
			to := n % 2
			clients.Go(func() { s.order(ctx, c, to) })
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
	}
	clients.Wait()
}

// order is one client: it asks until it has an answer.
func (s *storm) order(ctx context.Context, c charge, to int) {
	for ctx.Err() == nil {
		wait, done := s.ask(ctx, c, s.targets[to])
		if done {
			return
		}
		if wait == 0 {
			// Something broke: try the other one, soon.
			to = 1 - to
			wait = 20*time.Millisecond + rand.N(30*time.Millisecond)
		}
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
	s.failed.Add(1)
}

// ask sends one request. It returns how long the server wants the client to
// wait, if it said so, and whether the order is through.
func (s *storm) ask(ctx context.Context, c charge, target string) (time.Duration, bool) {
	body, err := json.Marshal(c)
	if err != nil {
		panic(err) // a struct of strings and numbers
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target+"/charges", strings.NewReader(string(body)))
	if err != nil {
		panic(err) // a URL that we made
	}
	req.GetBody = nil // net/http must not retry in our place: we count
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", `"`+c.Order+`"`)
	s.requests.Add(1)
	res, err := s.client.Do(req)
	if err != nil {
		s.errors.Add(1)
		return 0, false
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		s.errors.Add(1)
		return 0, false
	case res.StatusCode == http.StatusCreated:
		if res.Header.Get("Idempotent-Replayed") == "true" {
			s.replays.Add(1)
		}
		return 0, true
	case res.StatusCode == http.StatusConflict:
		s.conflicts.Add(1)
		return s.conflict(ctx, c, res.Header.Get("Retry-After"), answer), false
	}
	s.errors.Add(1)
	return 0, false
}

// conflict returns how long to wait after a 409, having seen to an outcome that
// is unknown.
func (s *storm) conflict(ctx context.Context, c charge, retryAfter string, problem []byte) time.Duration {
	if seconds, err := time.ParseDuration(retryAfter + "s"); err == nil {
		return seconds
	}
	var p struct{ Instance string }
	if json.Unmarshal(problem, &p) != nil || p.Instance == "" || s.unknown == nil {
		return 0
	}
	s.mu.Lock()
	once := s.seen[p.Instance]
	if once == nil {
		once = new(sync.Once)
		s.seen[p.Instance] = once
	}
	s.mu.Unlock()
	once.Do(func() {
		if s.unknown(ctx, c, p.Instance) == nil {
			s.settled.Add(1)
		}
	})
	return 0
}
