// Package wire has an address in front of a server that disturbs its connections, for tests
// and for the torture.
package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Wire is an address that leads to a server. A trouble on it applies to existing and to new
// connections. The methods may be called concurrently.
type Wire struct {
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	target  string
	trouble Trouble
	random  *rand.Rand    // of the trouble
	changed chan struct{} // closed and replaced when the trouble changes
	loss    *loss         // the reply to lose next
	links   map[*link]struct{}
	counts  Counts
	holding int // messages that are held now
	closed  bool
}

// Way is one of the two directions.
type Way int

// The ways.
const (
	// Requests go to the server, Replies come from it.
	Requests Way = iota // to the server
	Replies             // from it
)

// Trouble is what is wrong with a wire. The zero Trouble is none.
type Trouble struct {
	// Delay is how much longer everything takes, each way. Jitter is how much more than that it
	// can be. The order is kept.
	Delay, Jitter time.Duration
	// Hold keeps everything back until the trouble is over. That is a partition that ends
	// before the connections are given up.
	Hold bool
	// Lose drops what goes this way without an error. A connection that lost something is reset
	// when the trouble is over.
	Lose [2]bool
	// LoseReply is how many of the next replies are dropped, each on another connection, which is
	// reset: the server did what the client asked, and the client does not know.
	LoseReply int
	// Refuse resets new connections.
	Refuse bool
}

// loss is one reply to lose.
type loss struct {
	text string // in the request
	done chan struct{}
}

// Counts is what has happened on a wire since it was made.
type Counts struct {
	// Connections is how many connections reached the server.
	Connections int
	// Late is how many pieces arrived late. Held is how many of them were kept back.
	Late, Held int
	// LostRequests and LostReplies are how many pieces were dropped.
	LostRequests, LostReplies int
	// Closed is how many connections were reset during a call.
	Closed int
	// Refused is how many connections were reset before they began.
	Refused int
}

// Open opens a wire to the server at an address such as "127.0.0.1:5432". Close ends it.
func Open(target string) (*Wire, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("wire: opening one to %s: %w", target, err)
	}
	w := &Wire{listener: listener, target: target, changed: make(chan struct{}), links: map[*link]struct{}{}}
	w.running.Go(w.accept)
	return w, nil
}

// Addr returns the wire's address, to be used instead of the server's.
func (w *Wire) Addr() string { return w.listener.Addr().String() }

// Set replaces the trouble of the wire. The zero Trouble heals. Jitter comes from the random
// source; nil means a new one.
func (w *Wire) Set(trouble Trouble, r *rand.Rand) {
	seed := rand.Uint64()
	if r != nil {
		seed = r.Uint64()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		if l.lost[Requests] && !trouble.Lose[Requests] || l.lost[Replies] && !trouble.Lose[Replies] {
			l.cut()
		}
	}
	w.trouble, w.random = trouble, rand.New(rand.NewPCG(seed, 0))
	close(w.changed)
	w.changed = make(chan struct{})
}

// Mend ends every trouble.
func (w *Wire) Mend() {
	w.mu.Lock()
	w.loss = nil
	w.mu.Unlock()
	w.Set(Trouble{}, nil)
}

// Cut resets all connections and refuses new ones.
func (w *Wire) Cut() {
	w.Set(Trouble{Refuse: true}, nil)
	w.Reset()
}

// LoseReplyTo passes on the next request that contains the text, and resets its connection
// instead of passing the reply, after the server has executed everything that the
// connection sent. Then it closes the channel. Every request contains "".
func (w *Wire) LoseReplyTo(text string) <-chan struct{} {
	l := &loss{text: text, done: make(chan struct{})}
	w.mu.Lock()
	w.loss = l
	w.mu.Unlock()
	return l.done
}

// Reset resets all connections.
func (w *Wire) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		l.cut()
	}
}

// Lead leads new connections to another server, and resets the existing ones.
func (w *Wire) Lead(target string) {
	w.mu.Lock()
	w.target = target
	w.mu.Unlock()
	w.Reset()
}

// Target returns the address of the server that the wire leads to.
func (w *Wire) Target() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.target
}

// Counts returns what has happened so far.
func (w *Wire) Counts() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts
}

// Sources returns the addresses of the wire's connections, as the server sees them.
func (w *Wire) Sources() []*net.TCPAddr {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*net.TCPAddr
	for l := range w.links {
		if l.server != nil {
			all = append(all, l.server.LocalAddr().(*net.TCPAddr))
		}
	}
	return all
}

// Busy reports whether a call is under way.
func (w *Wire) Busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		if l.asked {
			return true
		}
	}
	return false
}

// Close resets all connections and ends the wire.
func (w *Wire) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	err := w.listener.Close()
	w.Set(Trouble{}, nil)
	w.Reset()
	w.running.Wait()
	return err
}

// accept serves the listener until it is closed.
func (w *Wire) accept() {
	for {
		conn, err := w.listener.Accept()
		if err != nil {
			w.mu.Lock()
			closed := w.closed
			w.mu.Unlock()
			if closed {
				return
			}
			time.Sleep(time.Millisecond) // out of files, or a client that left at once
			continue
		}
		client := conn.(*net.TCPConn)
		l := &link{wire: w, client: client, over: make(chan struct{})}
		w.mu.Lock()
		switch {
		case w.closed || w.trouble.Refuse:
			// The port stays ours: a listener that is closed for a while may find it taken.
			if !w.closed {
				w.counts.Refused++
			}
			reset(client)
		default:
			w.links[l] = struct{}{}
			w.running.Go(l.run)
		}
		w.mu.Unlock()
	}
}

// reset closes a connection so that the other end gets an error.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0) // fails on what is gone already
	_ = conn.Close()
}

// link is one connection through a wire.
type link struct {
	wire   *Wire
	client *net.TCPConn
	over   chan struct{} // closed by cut

	// Guarded by wire.mu.
	server *net.TCPConn // nil until connected
	asked  bool         // something was sent to the server, and no reply has been passed since
	lost   [2]bool      // something was lost that way
	loss   *loss        // the reply to lose
	ended  bool
}

// piece is what was read at once, and when it is due at the other end.
type piece struct {
	data []byte
	due  time.Time
	late bool
}

// connectLimit bounds connecting to the server.
const connectLimit = 10 * time.Second

// run connects the link, and carries both ways until one of them ends.
func (l *link) run() {
	w := l.wire
	defer func() {
		w.mu.Lock()
		l.end()
		delete(w.links, l)
		w.mu.Unlock()
	}()
	w.mu.Lock()
	target := w.target
	w.mu.Unlock()
	conn, err := net.DialTimeout("tcp", target, connectLimit)
	if err != nil {
		return // the client is reset, as if there were no wire
	}
	w.mu.Lock()
	if l.ended || w.target != target {
		w.mu.Unlock()
		conn.Close()
		return
	}
	l.server = conn.(*net.TCPConn)
	w.counts.Connections++
	w.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.carry(Requests, l.client, l.server) })
	both.Go(func() { l.carry(Replies, l.server, l.client) })
	both.Wait()
}

// cut resets both ends because of a trouble. Called with wire.mu held.
func (l *link) cut() {
	if !l.ended && l.asked {
		l.wire.counts.Closed++
	}
	l.end()
}

// end resets both ends. Called with wire.mu held.
func (l *link) end() {
	if l.ended {
		return
	}
	l.ended = true
	close(l.over)
	reset(l.client)
	if l.server != nil {
		reset(l.server)
	}
}

// carry carries one way until the sender closes it, or either end has ended.
func (l *link) carry(way Way, from, to *net.TCPConn) {
	var seen []byte // the end of the requests so far, because a text may be split
	pieces := l.read(way, from)
	for p := range pieces {
		if !l.pass(way, p) {
			continue
		}
		if way == Requests {
			seen = l.mark(append(seen, p.data...)) // before it is sent, so that the reply cannot pass
		} else if l.lose(pieces) {
			return
		}
		if _, err := to.Write(p.data); err != nil {
			l.wire.mu.Lock()
			l.end()
			l.wire.mu.Unlock()
			return
		}
	}
	_ = to.CloseWrite() // fails on what is gone already
}

// mark looks for the request whose reply will be lost. It returns the part of the data
// that the next call needs.
func (l *link) mark(seen []byte) []byte {
	w := l.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.loss == nil {
		return nil
	}
	if bytes.Contains(seen, []byte(w.loss.text)) {
		l.loss, w.loss = w.loss, nil
		return nil
	}
	keep := min(len(seen), max(len(w.loss.text)-1, 0))
	return bytes.Clone(seen[len(seen)-keep:])
}

// lose loses the reply, if it is the one to lose, and everything after it. A server reads
// all requests before it sees the end and closes, so it has executed everything then.
func (l *link) lose(replies <-chan piece) bool {
	w := l.wire
	w.mu.Lock()
	loss, server := l.loss, l.server
	w.mu.Unlock()
	if loss == nil {
		return false
	}
	_ = server.CloseWrite() // fails on what is gone already
	for range replies {
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !l.ended { // otherwise it was cut meanwhile, and the outcome is unknown
		w.counts.LostReplies++
		l.cut()
		close(loss.done)
	}
	return true
}

// read reads one end until it closes.
func (l *link) read(way Way, conn *net.TCPConn) <-chan piece {
	pieces := make(chan piece, 64)
	l.wire.running.Go(func() {
		defer close(pieces)
		buf := make([]byte, 64<<10)
		for {
			n, err := conn.Read(buf)
			if n > 0 {
				p := l.wire.due(bytes.Clone(buf[:n]))
				if way == Requests {
					l.wire.mu.Lock()
					l.asked = true
					l.wire.mu.Unlock()
				}
				select {
				case pieces <- p:
				case <-l.over:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	return pieces
}

// due says when what was read now is due.
func (w *Wire) due(data []byte) piece {
	w.mu.Lock()
	defer w.mu.Unlock()
	delay := w.trouble.Delay
	if w.trouble.Jitter > 0 {
		delay += time.Duration(w.random.Int64N(int64(w.trouble.Jitter)))
	}
	return piece{data: data, due: time.Now().Add(delay), late: delay > 0}
}

// pass waits until the piece may go on, and reports whether it may.
func (l *link) pass(way Way, p piece) bool {
	if left := time.Until(p.due); left > 0 {
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-l.over:
			timer.Stop()
			return false
		}
	}
	w := l.wire
	held := false
	for {
		w.mu.Lock()
		if l.ended {
			w.mu.Unlock()
			return false
		}
		if !w.trouble.Hold {
			break
		}
		held = true
		changed := w.changed
		w.holding++
		w.mu.Unlock()
		select {
		case <-changed:
		case <-l.over:
		}
		w.mu.Lock()
		w.holding--
		w.mu.Unlock()
	}
	defer w.mu.Unlock()
	switch {
	case w.trouble.Lose[way]:
		l.lost[way] = true
		if way == Requests {
			w.counts.LostRequests++
		} else {
			w.counts.LostReplies++
		}
		return false
	case way == Replies && w.trouble.LoseReply > 0 && l.asked:
		w.trouble.LoseReply--
		w.counts.LostReplies++
		l.cut()
		return false
	}
	if way == Replies {
		l.asked = false
	}
	if p.late || held {
		w.counts.Late++
	}
	if held {
		w.counts.Held++
	}
	return true
}
