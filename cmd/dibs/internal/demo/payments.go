package demo

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// payments is a payments service as many are: it charges whoever asks, as often
// as it is asked, and does not stop because a client went away. Its ledger is a
// file with one line for each charge.
type payments struct {
	server *http.Server
	url    string
	path   string

	mu      sync.Mutex
	ledger  *os.File
	charges int
	known   map[string]bool // orders that were asked for

	// crash is told when the order arrives in whose middle a proxy is killed,
	// and crashed is closed when that is done.
	crash   chan struct{}
	crashed chan struct{}
	once    sync.Once
}

// charge is what clients ask for and get.
type charge struct {
	ID     string `json:"id,omitempty"`
	Order  string `json:"order"`
	Amount int    `json:"amount"`
}

// crashOrder is the order in whose middle a proxy is killed.
const crashOrder = "order-crash"

// How long a charge takes. Every tenth order's first one takes longer than
// clients wait.
const (
	quick = 20 * time.Millisecond
	slow  = 400 * time.Millisecond
)

// startPayments starts the service with an empty ledger at path.
func startPayments(path string) (*payments, error) {
	ledger, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		ledger.Close()
		return nil, err
	}
	p := &payments{
		url:     "http://" + l.Addr().String(),
		path:    path,
		ledger:  ledger,
		known:   make(map[string]bool),
		crash:   make(chan struct{}),
		crashed: make(chan struct{}),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", p.create)
	p.server = &http.Server{Handler: mux}
	go func() { _ = p.server.Serve(l) }() // ends with close
	return p, nil
}

func (p *payments) close() {
	p.server.Close()
	p.ledger.Close()
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
	time.Sleep(pause / 2) // the card network thinks
	if err := p.record(&c); err != nil {
		http.Error(w, "the ledger is full", http.StatusInsufficientStorage)
		return
	}
	time.Sleep(pause / 2)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(c) // the client is gone
}

// first reports whether the order comes for the first time.
func (p *payments) first(order string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[order]
	p.known[order] = true
	return !known
}

// record charges.
func (p *payments) record(c *charge) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.charges++
	c.ID = fmt.Sprintf("ch_%04d", p.charges)
	_, err := fmt.Fprintf(p.ledger, "%s %s %d\n", c.ID, c.Order, c.Amount)
	return err
}

// read reads the ledger: the charges of each order.
func (p *payments) read() (map[string][]charge, error) {
	f, err := os.Open(p.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	charges := make(map[string][]charge)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var c charge
		if _, err := fmt.Sscanf(lines.Text(), "%s %s %d", &c.ID, &c.Order, &c.Amount); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", p.path, lines.Text(), err)
		}
		charges[c.Order] = append(charges[c.Order], c)
	}
	return charges, lines.Err()
}
