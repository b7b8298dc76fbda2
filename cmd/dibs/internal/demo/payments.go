package demo

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// payments is a payments service without protection: it makes a charge for each request,
// even after the client went away. A file has a line for each charge.
type payments struct {
	server *http.Server
	url    string

	mu      sync.Mutex
	file    *os.File
	n       int
	charges map[string][]charge // by order
	asked   map[string]bool     // orders

	// crash is closed when the order arrives that a proxy is killed for; the service continues
	// with it when crashed is closed.
	crash, crashed chan struct{}
	once           sync.Once
}

// charge is a request of a client, and the answer.
type charge struct {
	ID     string `json:"id,omitempty"`
	Order  string `json:"order"`
	Amount int    `json:"amount"`
}

// crashOrder is the order during which a proxy is killed.
const crashOrder = "order-crash"

// How long a charge takes. The first charge of every tenth order takes longer than clients
// wait.
const (
	quick = 20 * time.Millisecond
	slow  = 400 * time.Millisecond
)

// startPayments starts the service with an empty file at path.
func startPayments(path string) (*payments, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		file.Close()
		return nil, err
	}
	p := &payments{
		url:     "http://" + l.Addr().String(),
		file:    file,
		charges: make(map[string][]charge),
		asked:   make(map[string]bool),
		crash:   make(chan struct{}),
		crashed: make(chan struct{}),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", p.create)
	p.server = &http.Server{Handler: mux}
	go func() { _ = p.server.Serve(l) }()
	return p, nil
}

func (p *payments) close() {
	p.server.Close()
	p.file.Close()
}

func (p *payments) create(w http.ResponseWriter, r *http.Request) {
	var c charge
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil || c.Order == "" || strings.ContainsAny(c.Order, " \n") {
		http.Error(w, `send {"order": "NAME", "amount": CENTS}`, http.StatusBadRequest)
		return
	}
	pause := quick
	if strings.HasSuffix(c.Order, "0") && p.first(c.Order) {
		pause = slow
	}
	if c.Order == crashOrder {
		p.once.Do(func() { close(p.crash) })
		<-p.crashed
	}
	time.Sleep(pause / 2)
	if err := p.record(&c); err != nil {
		http.Error(w, "the charge was not recorded", http.StatusInsufficientStorage)
		return
	}
	time.Sleep(pause / 2)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(c) // fails if the client went away
}

// first reports whether the order was never asked for before.
func (p *payments) first(order string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.asked[order]
	p.asked[order] = true
	return !asked
}

// record makes the charge.
func (p *payments) record(c *charge) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	c.ID = fmt.Sprintf("ch_%04d", p.n)
	p.charges[c.Order] = append(p.charges[c.Order], *c)
	_, err := fmt.Fprintf(p.file, "%s %s %d\n", c.ID, c.Order, c.Amount)
	return err
}

// made returns the charges of an order.
func (p *payments) made(order string) []charge {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.charges[order])
}
