//go:build unix

package servertest

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// A Wire is an address that leads to a server, and the trouble on the way
// there. New, it passes everything on; each method changes what happens from
// then on, to connections that exist as well as to new ones, and may be called
// from any goroutine.
type Wire struct {
	owner  Owner
	target string
	port   *port

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when anything below changes
	listener net.Listener  // nil while cut and when closed
	hung     bool
	mute     bool
	delay    time.Duration
	loss     *loss // the reply to lose next
	links    map[*link]struct{}
	accepted int
	running  sync.WaitGroup
}

// loss is one reply that gets lost.
type loss struct {
	text string // of the request
	done chan struct{}
}

// NewWire opens a wire to the server at the target address; it ends with its
// owner.
func NewWire(owner Owner, target string) *Wire {
	owner.Helper()
	at, err := reservePort()
	if err != nil {
		owner.Fatalf("opening a wire: %v", err)
	}
	owner.Cleanup(at.release)
	w := &Wire{owner: owner, target: target, port: at, changed: make(chan struct{}), links: map[*link]struct{}{}}
	owner.Cleanup(func() {
		w.Cut()
		w.running.Wait()
	})
	w.Mend()
	return w
}

// Addr returns the wire's address, to be used in place of the server's.
func (w *Wire) Addr() string { return w.port.addr() }

// Cut breaks the wire: connections are reset, new ones refused, and what was
// under way is lost.
func (w *Wire) Cut() {
	// A process that is being started has copies of what is open here until it runs its
	// program. One of the listener would keep connections and the address.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	w.change(func() {
		if w.listener != nil {
			w.listener.Close()
			w.listener = nil
		}
		for l := range w.links {
			l.abort()
		}
	})
}

// Hang stops the wire: connections stay, new ones are accepted, and nothing
// gets through in either direction. What was under way gets through after Mend.
func (w *Wire) Hang() { w.change(func() { w.hung = true }) }

// Delay makes everything take d longer in each direction.
func (w *Wire) Delay(d time.Duration) { w.change(func() { w.delay = d }) }

// DropReplies lets requests through and swallows what the server answers.
func (w *Wire) DropReplies() { w.change(func() { w.mute = true }) }

// LoseReplyTo lets the next request that contains the text through, once, and
// resets its connection in place of the reply, when the server has carried out
// all that the connection brought it. The channel is closed then. An empty text
// is in every request. A request is seen whole when the client sends it in one
// write of less than 64 KiB.
func (w *Wire) LoseReplyTo(text string) <-chan struct{} {
	l := &loss{text: text, done: make(chan struct{})}
	w.change(func() { w.loss = l })
	return l.done
}

// Mend makes the wire pass everything on again at once.
func (w *Wire) Mend() {
	w.owner.Helper()
	var err error
	w.change(func() {
		w.hung, w.mute, w.delay, w.loss = false, false, 0, nil
		if w.listener == nil {
			var listener net.Listener
			if listener, err = net.Listen("tcp", w.Addr()); err == nil {
				w.listener = listener
				w.running.Go(func() { w.accept(listener) })
			}
		}
	})
	if err != nil {
		w.owner.Fatalf("mending the wire to %s: %v", w.target, err)
	}
}

// Accepted returns how many connections there have been.
func (w *Wire) Accepted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.accepted
}

// change changes what happens and tells those who wait for it.
func (w *Wire) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

// accept serves a listener until it is closed.
func (w *Wire) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		l := &link{wire: w, client: conn.(*net.TCPConn), closed: make(chan struct{})}
		w.mu.Lock()
		w.accepted++
		if w.listener != listener { // cut meanwhile
			l.abort()
		} else {
			w.links[l] = struct{}{}
			w.running.Go(l.run)
		}
		w.mu.Unlock()
	}
}
