package wire

import (
	"bytes"
	"net"
	"sync"
	"time"
)

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
