package proxy

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/framing"
)

// life knows which connections have somebody waiting for an answer, so that a
// proxy that stops waits for those and for no others. http.Server.Shutdown
// waits for every connection that has not been idle before: for one that has
// said nothing yet, for one that never ends its request.
type life struct {
	mu       sync.Mutex
	conns    map[net.Conn]*visit
	draining bool
	changed  chan struct{} // gets an element when a visit may have ended
}

// visit is one connection.
type visit struct {
	running  int  // handlers
	answered bool // a handler ran since the connection was last idle
	gone     bool // the connection became something else
}

func newLife() *life {
	return &life{conns: make(map[net.Conn]*visit), changed: make(chan struct{}, 1)}
}

// connState is the server's hook.
func (l *life) connState(c net.Conn, state http.ConnState) {
	if state == http.StateActive {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch state {
	case http.StateNew:
		l.conns[c] = new(visit)
		return
	case http.StateHijacked:
		if v := l.conns[c]; v != nil {
			v.gone = true
		}
	case http.StateIdle:
		if v := l.conns[c]; v != nil {
			v.answered = false
		}
	case http.StateClosed:
		delete(l.conns, c)
	}
	if l.draining {
		l.signal()
	}
}

// enter is called when a handler starts on a connection.
func (l *life) enter(c net.Conn) *visit {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.conns[c]
	if v == nil {
		v = new(visit) // closed in the meantime
	}
	v.running++
	v.answered = true
	return v
}

// leave is called when it ends.
func (l *life) leave(v *visit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.running--
	if l.draining {
		l.signal()
	}
}

func (l *life) signal() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// stopped reports whether the proxy takes no new requests.
func (l *life) stopped() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.draining
}

// busy counts the connections on which somebody waits for an answer. A peer
// that is in the middle of a request and has sent nothing for a while does not
// count.
func (l *life) busy() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for c, v := range l.conns {
		if v.gone || v.running == 0 && !v.answered {
			continue
		}
		if own, ok := c.(*framing.Conn); ok && own.Silent() > silence {
			continue
		}
		n++
	}
	return n
}

// silence is how long a peer may pause within a request once the proxy stops.
const silence = 2 * time.Second

// begin stops the admission of requests.
func (l *life) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draining = true
}

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
