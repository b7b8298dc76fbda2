package serve

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
	"github.com/dibs-go/dibs/stores/httpstore"
)

// TestConformance: the store over two servers of one store does what every store must do, while
// the servers are killed and started again in turn. At least one of them runs at any time.
func TestConformance(t *testing.T) {
	storetest.Run(t, &storetest.Harness{
		New: func(t testing.TB, _ time.Duration) *storetest.Subject {
			var two *pair
			fresh := func() { two = startPair(t) }
			fresh()
			return &storetest.Subject{Open: func() dibs.Store { return two.open(t) }, Wipe: fresh}
		},
		Lacks: map[storetest.Feature]string{
			storetest.Skew:    "it reads no clock",
			storetest.Restart: "the store in memory below it has none",
			storetest.Pruner:  "the store below it prunes itself",
		},
	})
}

// pair is two servers of one store in memory. After every few calls one of them is killed, and
// after a few more it is started again.
type pair struct {
	t     testing.TB
	under dibs.Store

	between sync.RWMutex // held for writing while a server is killed or started
	mu      sync.Mutex
	servers [2]*rig // nil: killed. Under between, too, for writing
	calls   int
}

// names are the addresses of the servers, which the pair resolves.
var names = [2]string{"127.0.0.1:1", "127.0.0.1:2"}

func startPair(t testing.TB) *pair {
	p := &pair{t: t, under: inMemory(t)}
	for i := range p.servers {
		p.servers[i] = start(t, p.under, nil)
	}
	return p
}

// open returns a store over both servers. A call makes a connection of its own, because one that
// was kept breaks under the call, and then it is not known whether it was carried out.
func (p *pair) open(t testing.TB) store.Store {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		p.mu.Lock()
		var r *rig
		for i, name := range names {
			if address == name {
				r = p.servers[i]
			}
		}
		p.mu.Unlock()
		if r == nil {
			return nil, &net.OpError{Op: "dial", Net: network, Err: net.ErrClosed}
		}
		return new(net.Dialer).DialContext(ctx, network, r.Listener.Addr().String())
	}
	s, err := httpstore.Open("http://"+names[0]+","+names[1], &httpstore.Options{
		Client: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}},
	})
	testkit.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return &restarting{s, p}
}

// killEvery is after how many calls a server is killed or started.
const killEvery = 5

// call makes a call of a store. No server is killed during it: what is then known of it is in
// TestAServerIsKilledAtEveryPoint. Calls in the background are cut off.
func (p *pair) call(f func() error) error {
	p.mu.Lock()
	p.calls++
	turn := p.calls / killEvery
	change := p.calls%killEvery == 0
	p.mu.Unlock()
	if change {
		p.between.Lock()
		p.change(turn/2%2, turn%2 == 0)
		p.between.Unlock()
	}
	p.between.RLock()
	defer p.between.RUnlock()
	return f()
}

// change kills a server, or starts one in its place.
func (p *pair) change(i int, up bool) {
	p.mu.Lock()
	r := p.servers[i]
	p.mu.Unlock()
	switch {
	case up && r == nil:
		r = start(p.t, p.under, nil)
		p.mu.Lock()
		p.servers[i] = r
		p.mu.Unlock()
	case !up && r != nil:
		p.mu.Lock()
		other := p.servers[1-i]
		if other != nil {
			p.servers[i] = nil
		}
		p.mu.Unlock()
		if other != nil {
			r.kill()
		}
	}
}

// restarting is a store over a pair.
type restarting struct {
	*httpstore.Store
	p *pair
}

func (s *restarting) Claim(ctx context.Context, q []store.Claim, a []store.Answer) error {
	return s.p.call(func() error { return s.Store.Claim(ctx, q, a) })
}

func (s *restarting) Renew(ctx context.Context, q []store.Renewal, errs []error) error {
	return s.p.call(func() error { return s.Store.Renew(ctx, q, errs) })
}

func (s *restarting) Settle(ctx context.Context, q []store.Settlement, errs []error) error {
	return s.p.call(func() error { return s.Store.Settle(ctx, q, errs) })
}
