package proxy

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/framing"
)

// life knows which connections have somebody waiting for an answer, so that a
// proxy that stops waits for those and for no others. http.Server.Shutdown
// waits for every connection that has not been idle before: for one that has
// said nothing yet, for one that never ends its request.
type life struct {
	draining atomic.Bool
	changed  chan struct{} // gets an element when a visit may have ended

	mu     sync.Mutex
	visits map[*visit]struct{}
}

// visit is one connection, until it is closed or becomes something else.
type visit struct {
	framing.Conn
	running  atomic.Int32 // handlers
	answered atomic.Bool  // a handler ran since the connection was last idle
}

func newLife() *life {
	return &life{visits: make(map[*visit]struct{}), changed: make(chan struct{}, 1)}
}

// listener makes visits of a listener's connections.
type listener struct {
	net.Listener
	life *life
}

// Accept returns a *visit.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &visit{Conn: framing.Conn{Conn: c}}
	l.life.mu.Lock()
	defer l.life.mu.Unlock()
	l.life.visits[v] = struct{}{}
	return v, nil
}

// connState is the server's hook.
func (l *life) connState(c net.Conn, state http.ConnState) {
	v := c.(*visit)
	switch state {
	case http.StateIdle:
		v.answered.Store(false)
	case http.StateHijacked, http.StateClosed:
		l.mu.Lock()
		delete(l.visits, v)
		l.mu.Unlock()
	default:
		return
	}
	l.signal()
}

// enter is called when a handler starts on a connection.
func (v *visit) enter() {
	v.running.Add(1)
	v.answered.Store(true)
}

// leave is called when it ends.
func (l *life) leave(v *visit) {
	v.running.Add(-1)
	l.signal()
}

func (l *life) signal() {
	if !l.stopped() {
		return
	}
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// stopped reports whether the proxy takes no new requests.
func (l *life) stopped() bool { return l.draining.Load() }

// busy counts the connections on which somebody waits for an answer. A peer
// that is in the middle of a request and has sent nothing for a while does not
// count.
func (l *life) busy() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for v := range l.visits {
		if (v.running.Load() > 0 || v.answered.Load()) && v.Silent() <= silence {
			n++
		}
	}
	return n
}

// silence is how long a peer may pause within a request once the proxy stops.
const silence = 2 * time.Second

// begin stops the admission of requests.
func (l *life) begin() { l.draining.Store(true) }

// wait waits until nobody waits for an answer any more, or for the end of ctx.
// It returns how many still did.
func (l *life) wait(ctx context.Context) int {
	// Silence makes no signal, so there is a look now and then.
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		n := l.busy()
		if n == 0 {
			return 0
		}
		select {
		case <-l.changed:
		case <-tick.C:
		case <-ctx.Done():
			return n
		}
	}
}
