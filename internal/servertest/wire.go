//go:build unix

package servertest

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// A Wire is an address in front of a server that can disturb its connections. A new Wire
// passes everything on. Each method changes old and new connections, and may be called
// from any goroutine.
type Wire struct {
	owner  Owner
	target string
	port   *port

	mu       sync.Mutex
	changed  chan struct{}    // closed and replaced when a field below changes
	listener *net.TCPListener // nil while cut or closed
	hung     bool
	mute     bool
	delay    time.Duration
	loss     *loss // the reply to lose next
	links    map[*link]struct{}
	accepted int
	running  sync.WaitGroup
}

// loss is one reply to lose.
type loss struct {
	text string // in the request
	done chan struct{}
}

// NewWire opens a wire to the server at target. It ends with its owner.
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

// Addr returns the wire's address. Use it instead of the server's.
func (w *Wire) Addr() string { return w.port.addr() }

// Cut cuts the wire: it resets connections, refuses new ones, and loses data under way.
func (w *Wire) Cut() {
	w.change(func() {
		if w.listener != nil {
			shut(w.listener)
			w.listener = nil
		}
		for l := range w.links {
			l.abort()
		}
	})
}

// shut closes a listener. A starting child process has copies of open files for a moment. A
// copy that listens would keep the address, so the socket is shut down first.
func shut(listener *net.TCPListener) {
	if raw, err := listener.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	}
	listener.Close()
}

// Hang stops the wire: connections stay and new ones are accepted, but no data passes.
// Mend lets the data pass.
func (w *Wire) Hang() { w.change(func() { w.hung = true }) }

// Delay delays data by d in each direction.
func (w *Wire) Delay(d time.Duration) { w.change(func() { w.delay = d }) }

// DropReplies passes requests on and drops the server's replies.
func (w *Wire) DropReplies() { w.change(func() { w.mute = true }) }

// LoseReplyTo passes on the next request that contains the text, and resets its
// connection instead of passing the reply, after the server has executed everything that
// the connection sent. Then it closes the channel. Every request contains "". A request
// must be one write of less than 64 KiB.
func (w *Wire) LoseReplyTo(text string) <-chan struct{} {
	l := &loss{text: text, done: make(chan struct{})}
	w.change(func() { w.loss = l })
	return l.done
}

// Mend makes the wire pass everything on again.
func (w *Wire) Mend() {
	w.owner.Helper()
	var err error
	w.change(func() {
		w.hung, w.mute, w.delay, w.loss = false, false, 0, nil
		if w.listener == nil {
			var listener *net.TCPListener
			if listener, err = net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: w.port.number}); err == nil {
				w.listener = listener
				w.running.Go(func() { w.accept(listener) })
			}
		}
	})
	if err != nil {
		w.owner.Fatalf("mending the wire to %s: %v", w.target, err)
	}
}

// Accepted returns the number of connections so far.
func (w *Wire) Accepted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.accepted
}

// change changes the wire and wakes the links that wait for a change.
func (w *Wire) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

// accept serves a listener until it is closed.
func (w *Wire) accept(listener *net.TCPListener) {
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
